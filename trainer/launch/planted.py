"""What was done to a run because its own settings asked for it (`fault`) is told as that."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path


def explain_planted_kill(faults: Path, since_s: float) -> str:
    """That a rank has killed itself as asked, in words; "" where none has.

    Args:
        faults: folder of the marks that trainer/faults.py leaves.
        since_s: seconds of Unix time; what is older belongs to an earlier start.
    """
    with suppress(OSError, ValueError, KeyError):  # a volume that cannot be read changes nobody's exit code
        for mark in sorted(faults.glob("kill@*")):
            for line in mark.read_text().splitlines():
                happened = json.loads(line)
                if happened["t"] >= since_s:
                    return (
                        f"as run.config.fault asked of rank {happened['rank']} at step {happened['step']} "
                        "[SL-kill-planted]"
                    )
    return ""
