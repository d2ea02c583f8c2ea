"""COMPARISON/RUN, as a user names a run that lies on a cluster's volume."""

from __future__ import annotations

import re

from stratlab.user_error import UserError

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def read_name(text: str) -> tuple[str, str]:
    """(comparison, run) of COMPARISON/RUN. Raises UserError."""
    found = re.fullmatch(f"({NAME})/({NAME})", text)
    if not found:
        raise UserError(
            f"{text}: with --on-cluster give COMPARISON/RUN, such as demo/ddp [SL-name-not-comparison-run]"
        )
    return found[1], found[2]
