"""Why a sweep cannot start, told at once."""

from __future__ import annotations

from collections.abc import Iterable

from stratlab.user_error import UserError


def cannot_start(lines: Iterable[str]) -> UserError:
    """The error with one line per cause."""
    return UserError("\n  ".join(["the sweep cannot start:", *lines]))
