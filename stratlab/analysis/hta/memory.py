"""How much memory HTA's process may take, for how many ranks that is enough, and what ended for lack of it."""

from __future__ import annotations

import re
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path

CGROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # version 2, version 1
CGROUP_USES = ("memory.stat", "memory/memory.stat")
HELD = frozenset({"anon", "shmem", "total_rss", "total_shmem"})  # of these; page cache can go
# Python, numpy, the loader of libraries, C++, OpenBLAS; a thread's stack counts as well, the kernel says -9, and a
# library in C whose allocation failed may return nothing without saying why, which Python calls a SystemError
NO_MEMORY = re.compile(
    r"MemoryError|cannot allocate memory|bad_alloc|memory allocation|failed to map segment"
    r"|can't start new thread|pthread_create failed|ended with -9\b"
    r"|SystemError: .*without (setting an )?exception",
    re.IGNORECASE,
)
# of HTA's process. Reading whole texts it took 4.6 to 6.4 times the unpacked size and kept 1.3 times (traces of 5 to
# 525 MiB, docs/hta.md); it reads less now (reading.py), so that there is room for what the analyses need
BASE_BYTES = 300 << 20  # its libraries
KEPT, READING = (
    2.0,
    5.5,
)  # times the unpacked size: of every rank that it holds, and of the largest while it is read


def find_free_bytes(cgroup: Path = Path("/sys/fs/cgroup"), meminfo: Path = Path("/proc/meminfo")) -> int:
    """What the machine has left, or what the container may still take of it."""
    lines = meminfo.read_text().splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for limit, use in zip(CGROUP_LIMITS, CGROUP_USES, strict=True):
        try:
            text, stat = (cgroup / limit).read_text().strip(), (cgroup / use).read_text()
        except OSError:
            continue
        if text.isdigit():  # else `max`: no limit
            held = sum(int(size) for name, size in map(str.split, stat.splitlines()) if name in HELD)
            found.append(max(0, int(text) - held))
    return min(found)


def choose_ranks(raw_bytes: Mapping[int, int], allowed_bytes: int) -> list[int]:
    """The lowest ranks whose traces, of these unpacked sizes, HTA can hold together; empty if not even the first."""
    chosen: list[int] = []
    for rank in sorted(raw_bytes):
        if estimate_bytes([raw_bytes[r] for r in (*chosen, rank)]) > allowed_bytes:
            break
        chosen.append(rank)
    return chosen


def estimate_bytes(raw_bytes: Sequence[int]) -> int:
    """What HTA's process needs for traces of these unpacked sizes, read one after the other."""
    return int(BASE_BYTES + KEPT * sum(raw_bytes) + (READING - KEPT) * max(raw_bytes))


def apply_memory_limit(limit_bytes: int) -> None:
    """From now on this process fails with MemoryError before it holds more of its own; what it starts inherits that.

    Private data count, not code or shared files (RLIMIT_DATA): libraries map much that they never touch.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))


def describe_failure(text: str, limit_bytes: int) -> str:
    """What the status table says of an error, or of the last line of a process that ended: with the limit if that was
    the cause."""
    cause = f"needs more than its {limit_bytes / 2**30:.3g} GiB of memory"
    return f"{cause} ({text}) [SL-hta-memory]" if lacked_memory(text) else text


def lacked_memory(text: str) -> bool:
    """Whether an error, or what was made of it, says so."""
    return NO_MEMORY.search(text) is not None
