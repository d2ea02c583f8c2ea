"""What a user did wrong, and nothing else: it ends a command with an exit code and a sentence, without a traceback."""

from __future__ import annotations

from typing import ClassVar


class UserError(ValueError):
    """An option, a file or a folder that cannot be used as given: names it, and says what is allowed.

    Never raised for what a library or this program did: a plain ValueError is a bug, and keeps its traceback.
    """

    exit_code: ClassVar[int] = 2


class NothingThere(UserError):
    """A folder of results that is not there, or in which there is no run yet: the same command may be right later."""

    exit_code: ClassVar[int] = 3
