"""What the kernel says of the memory of this container, or of no container (cgroup v2 or v1), when a rank was killed.

The kernel's killer leaves no word in the process that it ends; its count, the limit and the highest use are in files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
GIB = 2**30
NO_LIMIT = 2**60
"""A limit above it is none: v1 writes the largest number of pages that there is."""
FROM_OUTSIDE = (
    "it was ended from outside, by a kill -9, a scheduler, or a watcher of memory (systemd-oomd, on a cluster the "
    "kubelet); the system's log names it"
)


@dataclass(frozen=True)
class _Names:
    """Of the files in the cgroup's folder."""

    killed: str
    limit: str
    peak: str


V2 = _Names("memory.events", "memory.max", "memory.peak")
V1 = _Names("memory/memory.oom_control", "memory/memory.limit_in_bytes", "memory/memory.max_usage_in_bytes")


class ContainerMemory:
    """Of this pod's container, from the start of its ranks on.

    Args:
        folder: of the cgroup; a container sees its own there.
    """

    def __init__(self, folder: Path = CGROUP) -> None:
        self._folder = folder
        self._names = V1 if (folder / V1.killed).exists() else V2
        self._killed = self._read_killed()

    def explain_kill(self) -> str:
        """Why a process may have got signal 9; "" where the system does not say."""
        killed = self._read_killed()
        if killed is None or self._killed is None:
            return ""
        limit, peak = self._read_size(self._names.limit), self._read_size(self._names.peak)
        ended = killed - self._killed
        if (
            limit is None or limit >= NO_LIMIT
        ):  # a pod without one, or no container at all: its peak may be a machine's
            return _explain_without_limit(ended)
        use = f"it used {peak / GIB:.2f} GiB at most" if peak is not None else "its highest use is not known"
        allowed = f"{limit / GIB:.2f} GiB are allowed, {use}"
        if ended > 0:
            return (
                f"the kernel's OOM killer has ended {ended} of this container's processes: {allowed}; raise "
                "run.resources.limits.memory or run.sharedMemory.sizeLimit, or hold less: fewer processes per node, "
                "data_residence=stream, no offload [SL-oom-kill-limit]"
            )
        return f"not for this container's own limit: {allowed}; {FROM_OUTSIDE} [SL-kill-within-limit]"

    def _read_killed(self) -> int | None:
        try:
            text = (self._folder / self._names.killed).read_text()
            return int(dict(line.split() for line in text.splitlines())["oom_kill"])
        except (OSError, ValueError, KeyError):
            return None

    def _read_size(self, name: str) -> int | None:
        try:
            return int((self._folder / name).read_text())
        except (OSError, ValueError):  # "max": no limit
            return None


def _explain_without_limit(ended: int) -> str:
    if ended > 0:
        return (
            f"the kernel's OOM killer has ended {ended} of these processes: no limit is set, so the machine ran out of "
            "memory (`dmesg` names who took it); hold less: fewer processes, a smaller micro-batch "
            "[SL-oom-kill-machine]"
        )
    return f"the kernel's OOM killer has ended none of these processes; {FROM_OUTSIDE} [SL-kill-from-outside]"
