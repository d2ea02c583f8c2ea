"""Copies by kind, with their bandwidth: all bytes over all time, so a long copy counts for more than a short one."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stratlab.traces.events import COPY_CATEGORIES
from stratlab.traces.trace import Trace

# CUDA's and ROCm's names; the first that matches
KINDS = (
    ("HtoD", re.compile(r"HtoD|HostToDevice")),
    ("DtoH", re.compile(r"DtoH|DeviceToHost")),
    ("DtoD", re.compile(r"DtoD|DeviceToDevice")),
    ("PtoP", re.compile(r"PtoP|PeerToPeer")),
    ("Memset", re.compile(r"memset|fillbuffer", re.IGNORECASE)),
)


@dataclass(frozen=True)
class CopyRow:
    """All copies of one kind on one rank, over the whole trace. `bytes` and `gbps` (1e9 bytes per second) are None
    where the trace does not tell the size of each."""

    rank: int
    kind: str
    count: int
    bytes: int | None
    total_ms: float
    gbps: float | None


def name_copy(name: str) -> str:
    """`HtoD` for `Memcpy HtoD (Pinned -> Device)`; what is not known is `other`."""
    return next((kind for kind, pattern in KINDS if pattern.search(name)), "other")


def build_copies(rank: int, trace: Trace) -> list[CopyRow]:
    """One row per kind, those with most time first; none on CPU traces."""
    copies = np.flatnonzero(trace.in_category(COPY_CATEGORIES)[trace.gpu])
    names = trace.name[trace.gpu[copies]]
    kind_of = {int(code): name_copy(trace.names[code]) for code in np.unique(names)}
    durations = (trace.end - trace.ts)[trace.gpu[copies]]
    rows = []
    for kind in sorted(set(kind_of.values())):
        mine = np.isin(names, [code for code, name in kind_of.items() if name == kind])
        sizes, total_ns = trace.bytes[copies[mine]], int(durations[mine].sum())
        size = int(sizes.sum()) if (sizes >= 0).all() else None
        rate = size / total_ns if size is not None and total_ns else None
        rows.append(CopyRow(rank, kind, int(mine.sum()), size, total_ns / 1e6, rate))
    return sorted(rows, key=lambda row: -row.total_ms)
