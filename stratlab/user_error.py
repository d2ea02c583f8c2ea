"""What a user did wrong, and nothing else: it ends a command with exit code 2 and one sentence, without a traceback."""

from __future__ import annotations


class UserError(ValueError):
    """An option, a file or a folder that cannot be used as given: names it, and says what is allowed.

    Never raised for what a library or this program did: a plain ValueError is a bug, and keeps its traceback.
    """
