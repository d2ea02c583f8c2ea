"""What else the machine did while a run trained: times of steps have it in them, whoever caused it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STAT = Path("/proc/stat")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class MachineLoad:
    """Of the machine that this rank is on, from now until `describe`.

    A container sees the processors of its whole node.
    """

    def __init__(self, stat: Path = STAT) -> None:
        self._stat = stat
        self._began = self._read()

    def describe(self) -> dict[str, float | None]:
        """Fields: docs/architecture.md. Null where the system does not tell."""
        seconds, own_s, busy_s = (now - then for now, then in zip(self._read(), self._began, strict=True))
        return {
            "cores": float(os.cpu_count() or 1),
            "load_average": os.getloadavg()[0],
            "seconds": seconds,
            "own_cpu_s": own_s,
            "busy_cpu_s": busy_s if busy_s == busy_s else None,
        }

    def _read(self) -> tuple[float, float, float]:
        """Clock, this process's and all processes' CPU time, in seconds."""
        return time.monotonic(), time.process_time(), read_busy_s(self._stat)


def read_busy_s(stat: Path) -> float:
    """CPU time of all processes since the machine has started, idle and waiting for disks left out; NaN = not told."""
    try:
        _name, user, nice, system, _, _, interrupts, soft, *_ = stat.read_text().splitlines()[0].split()
        return sum(map(int, (user, nice, system, interrupts, soft))) / TICKS_PER_S
    except (OSError, ValueError, IndexError):
        return float("nan")


def sum_up_load(ranks: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """For summary.json, of the machine that was busiest with other things.

    Returns:
        load_average: of the last minute of training.
        other_cpu_pct: of the machine's processors, what processes took that are no rank of this run.

    Args:
        ranks: the facts of every rank, with `host` and `machine`.
    """
    averages, shares = [], []
    for host in dict.fromkeys(rank["host"] for rank in ranks):
        found = [rank["machine"] for rank in ranks if rank["host"] == host]
        averages.append(found[0]["load_average"])
        busy_s, seconds = found[0]["busy_cpu_s"], found[0]["seconds"]
        if busy_s is not None and seconds:
            others_s = busy_s - sum(each["own_cpu_s"] for each in found)
            shares.append(100.0 * max(others_s, 0.0) / (found[0]["cores"] * seconds))
    return {"load_average": max(averages), "other_cpu_pct": max(shares, default=None)}
