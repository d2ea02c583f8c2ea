"""Whether a volume has no room left: programs that cannot write their log there cannot say so themselves."""

from __future__ import annotations

import os
from pathlib import Path

FULL_BELOW = 1 << 20
"""Bytes. Below it no store, no checkpoint and hardly a log can be written."""


def say_full(folder: Path) -> str:
    """`the volume of /data has 0 of 61440 bytes free`; "" where there is room, or nothing can be asked."""
    try:
        told = os.statvfs(folder)
    except OSError:
        return ""
    if told.f_files and not told.f_favail:
        return f"the volume of {folder} has room for no further file"
    free, size = told.f_bavail * told.f_frsize, told.f_blocks * told.f_frsize
    return f"the volume of {folder} has {free} of {size} bytes free" if size and free < FULL_BELOW else ""
