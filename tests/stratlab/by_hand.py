"""A trace of one rank taken apart a second time, naively and from the raw JSON: what the analysis must say of a step.

Whole nanoseconds out of decimals, no numpy, nothing of stratlab. Slow, and short enough to be read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

COPIES = {"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"}
KERNELS = {"kernel", "Kernel"}
LAUNCHES = {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime"}
LABELS = {"user_annotation", "Operator"}


@dataclass(frozen=True)
class Work:
    """One GPU event, ns; `issued` None = launched before the recording began."""

    kind: str
    start: int
    end: int
    issued: int | None


@dataclass
class Step:
    """One step, ns. It lasts from when the GPU had ended what was issued before it to the end of its own last event."""

    number: int
    span: int = 0
    compute: int = 0
    comm_exposed: int = 0
    copy_exposed: int = 0
    idle: int = 0


def to_ns(us: Decimal) -> int:
    return int((us * 1000).to_integral_value())


def read_work(events: list[dict[str, Any]]) -> list[Work]:
    launches = {
        e["args"]["correlation"]: to_ns(e["ts"])
        for e in events
        if e.get("cat") in LAUNCHES and "correlation" in e.get("args", {})
    }
    found = []
    for e in events:
        if e.get("cat") not in COPIES | KERNELS:
            continue
        kind = "copy" if e["cat"] in COPIES else "comm" if "nccl" in e["name"].lower() else "compute"
        start = to_ns(e["ts"])
        found.append(Work(kind, start, start + to_ns(e["dur"]), launches.get(e["args"]["correlation"])))
    return found


def take_apart(path: Path) -> list[Step]:
    """The steps by `ProfilerStep#i`, without those in which nothing was launched."""
    content = json.loads(path.read_text(), parse_float=Decimal, parse_int=Decimal)
    events = [e for e in content["traceEvents"] if e["ph"] == "X"]
    work = read_work(events)
    labels = sorted(
        (to_ns(e["ts"]), to_ns(e["ts"]) + to_ns(e["dur"]), int(e["name"].partition("#")[2]))
        for e in events
        if e["name"].startswith("ProfilerStep#") and e["cat"] in LABELS
    )
    return [
        _take_apart(number, begin, end, work)
        for begin, end, number in labels
        if any(w.issued is not None and begin <= w.issued < end for w in work)
    ]


def _take_apart(number: int, begin: int, end: int, work: list[Work]) -> Step:
    low = max([begin, *(w.end for w in work if w.issued is None or w.issued < begin)])
    high = max([end, *(w.end for w in work if w.issued is None or w.issued < end)])
    changes = [(low, "", 0), (high, "", 0)]
    for w in work:
        if w.end > low and w.start < high:
            changes += [(max(w.start, low), w.kind, 1), (min(w.end, high), w.kind, -1)]
    step, running, before = Step(number, high - low), {"compute": 0, "comm": 0, "copy": 0, "": 0}, low
    for at, kind, change in sorted(changes):
        if running["compute"]:
            step.compute += at - before
        elif running["comm"]:
            step.comm_exposed += at - before
        elif running["copy"]:
            step.copy_exposed += at - before
        else:
            step.idle += at - before
        running[kind] += change
        before = at
    return step
