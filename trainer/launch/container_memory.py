"""What the kernel says of this container's memory (cgroup v2), when a rank was killed by signal 9.

The kernel's killer leaves no word in the process that it ends; its count, the limit and the highest use are in files.
"""

from __future__ import annotations

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
GIB = 2**30


class ContainerMemory:
    """Of this pod's container, from the start of its ranks on.

    Args:
        folder: of the cgroup; a container sees its own there.
    """

    def __init__(self, folder: Path = CGROUP) -> None:
        self._folder = folder
        self._killed = self._read_killed()

    def explain_kill(self) -> str:
        """Why a process may have got signal 9; "" where the system does not say."""
        killed = self._read_killed()
        if killed is None or self._killed is None:
            return ""
        limit, peak = self._read_size("memory.max"), self._read_size("memory.peak")
        use = f"it used {peak / GIB:.2f} GiB at most" if peak is not None else "its highest use is not known"
        allowed = f"{limit / GIB:.2f} GiB are allowed" if limit is not None else "it has no limit of its own"
        if killed > self._killed:
            return (
                f"the kernel's OOM killer has ended {killed - self._killed} of this container's processes: {allowed}, "
                f"{use}; raise run.resources.limits.memory or run.sharedMemory.sizeLimit, or hold less: fewer "
                "processes per node, data_residence=stream, no offload"
            )
        return f"not for this container's own limit: {allowed}, {use}; the node may have run out of memory"

    def _read_killed(self) -> int | None:
        try:
            lines = dict(line.split() for line in (self._folder / "memory.events").read_text().splitlines())
            return int(lines["oom_kill"])
        except (OSError, ValueError, KeyError):
            return None

    def _read_size(self, name: str) -> int | None:
        try:
            return int((self._folder / name).read_text())
        except (OSError, ValueError):  # "max": no limit
            return None
