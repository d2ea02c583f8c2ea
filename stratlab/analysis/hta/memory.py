"""How much memory a process may take: a limit that it sets for itself and for the processes that it starts."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

CGROUP_FILES = ("memory.max", "memory/memory.limit_in_bytes")  # version 2, version 1

# Python, numpy, the loader of libraries, C++, OpenBLAS
NO_MEMORY = re.compile(r"MemoryError|cannot allocate memory|bad_alloc|memory allocation", re.IGNORECASE)


def find_memory_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """What the machine has, or what the container may take of it."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in CGROUP_FILES:
        try:
            text = (cgroup / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # else `max`: no limit
            found.append(int(text))
    return min(found)


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
    return f"{cause} ({text})" if NO_MEMORY.search(text) else text
