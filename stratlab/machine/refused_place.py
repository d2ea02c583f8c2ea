"""Places that the system does not let a program read or write: the user's to change, and no bug."""

from __future__ import annotations

import errno

REFUSED = frozenset(
    {
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.ENAMETOOLONG,
        errno.ELOOP,
    }
)


def say_refused(failure: BaseException) -> str:
    """The place and why it is refused, as a sentence; "" for every other failure."""
    if not isinstance(failure, OSError) or failure.errno not in REFUSED or not failure.filename:
        return ""
    where = f"{failure.filename}: {failure.strerror}"
    return f"{where}; choose a place that this user can read and write [SL-place-refused]"
