"""Work with runs: rehearse, wait, analyze, compare. Imports neither torch nor `trainer`.

The errors of a user end a command with an exit code and a sentence, without a traceback.
"""

from __future__ import annotations

from typing import ClassVar


class UserError(ValueError):
    """Report an unusable option, file or folder: name it and the allowed values.

    Never raised for errors of a library or this program: a plain ValueError is a bug, and keeps its traceback.
    """

    exit_code: ClassVar[int] = 2


class NothingThere(UserError):
    """Report a missing folder of results, or one without a run yet: the same command may succeed later."""

    exit_code: ClassVar[int] = 3
