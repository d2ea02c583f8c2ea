"""The analyses of Holistic Trace Analysis: how each is called, and when it does not apply.

`hta` is the import name of `traceinsight` (0.6.1). `num_kernels` sums up the rest under wrong columns. The last
profiler step is dropped by default. Several analyses use only rank 0 by default. `generate_trace_with_counters`
writes next to its input and is never called.

Also the limit of the memory of HTA's process, the number of ranks for which it suffices, and errors caused by it.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ALL_KERNELS = {"num_kernels": 100_000, "duration_ratio": 1.0}
MOST_LAUNCHES = 20_000  # of one rank, for the one analysis that is quadratic
NO_GPU = "needs GPU kernels, and these are CPU traces [SL-hta-no-gpu]"


@dataclass(frozen=True)
class Scene:
    """The loaded traces, and their facts that decide whether an analysis applies."""

    hta: Any  # hta.trace_analysis.TraceAnalysis
    ranks: list[int]
    has_gpu: bool
    names: list[str]
    scratch: str
    memory_bytes: int = 0  # the process's limit


@dataclass(frozen=True)
class Analysis:
    """One analysis: its call, and the reason if it does not apply (None = it does)."""

    name: str
    call: Callable[[Scene], Any]
    needs_gpu: bool = True
    obstacle: Callable[[Scene], str | None] = lambda scene: None


def _no_communication(scene: Scene) -> str | None:
    if any(name.startswith(("nccl", "hip", "hccl")) or "ncclKernel" in name for name in scene.names):
        return None
    return "needs communication kernels, which these traces lack [SL-hta-no-communication]"


def _no_stragglers(scene: Scene) -> str | None:
    if len(scene.ranks) < 2:
        return "needs two ranks [SL-hta-one-rank]"
    if any(name.startswith("ncclKernel") for name in scene.names):
        return None
    return "HTA looks for ncclKernel*, which NCCL has not called its kernels since 2.18 [SL-hta-nccl-names]"


def _no_sequences(scene: Scene) -> str | None:
    if "aten::linear" in scene.names:
        return None
    return "needs aten::linear, which does not occur [SL-hta-no-linear]"


def _too_many_launches(scene: Scene) -> str | None:
    """Return why HTA is not run: it searches all operators for each launch, so that the time grows with the square."""
    most = max(int((scene.hta.t.get_trace(rank)["stream"] != -1).sum()) for rank in scene.ranks)
    if most <= MOST_LAUNCHES:
        return None
    return f"{most} kernels of one rank, HTA needs minutes above {MOST_LAUNCHES} [SL-hta-many-launches]"


def _critical_path(scene: Scene) -> Any:
    """Return the bounds of the first profiled step of the first rank, in percent of its duration."""
    graph, success = scene.hta.critical_path_analysis(
        rank=scene.ranks[0], annotation="ProfilerStep", instance_id=0
    )
    assert success, "HTA found no critical path"
    return graph.summary().rename("pct").rename_axis("bound_by").reset_index()


def _stragglers(scene: Scene) -> Any:
    import pandas as pd

    return pd.DataFrame({"rank": scene.hta.get_potential_stragglers(num_candidates=1, visualize=False)})


def _profiler_steps(scene: Scene) -> Any:
    import pandas as pd

    return pd.DataFrame({"step": [int(step) for step in scene.hta.get_profiler_steps()]})


def _annotations(scene: Scene, **of_what: bool) -> Any:
    return scene.hta.get_gpu_user_annotation_breakdown(visualize=False, **of_what, **ALL_KERNELS)


def _kernels(scene: Scene) -> Any:
    types, kernels = scene.hta.get_gpu_kernel_breakdown(visualize=False, **ALL_KERNELS)
    return {"types": types, "kernels": kernels}


def _by_rank(call: Callable[[Scene, int], Any]) -> Callable[[Scene], Any]:
    return lambda scene: {f"rank{rank}": call(scene, rank) for rank in scene.ranks}


def _full_queue(scene: Scene) -> Any:
    series = scene.hta.get_queue_length_time_series(ranks=scene.ranks)
    return scene.hta.get_time_spent_blocked_on_full_queue(series)


def _launch_stats(scene: Scene) -> Any:
    found = scene.hta.get_cuda_kernel_launch_stats(ranks=scene.ranks, visualize=False)
    return {f"rank{rank}": frame for rank, frame in found.items()}


def _sequences(scene: Scene) -> Any:
    return scene.hta.get_frequent_cuda_kernel_sequences(
        operator_name="aten::linear", output_dir=scene.scratch, rank=scene.ranks[0], visualize=False
    )


ANALYSES = (
    Analysis("profiler_steps", _profiler_steps, needs_gpu=False),
    Analysis("cpu_user_annotations", partial(_annotations, use_gpu_annotation=False), needs_gpu=False),
    Analysis("temporal_breakdown", lambda s: s.hta.get_temporal_breakdown(visualize=False)),
    Analysis(
        "comm_comp_overlap",
        lambda s: s.hta.get_comm_comp_overlap(visualize=False),
        obstacle=_no_communication,
    ),
    Analysis(
        "idle_time_breakdown", lambda s: s.hta.get_idle_time_breakdown(ranks=s.ranks, visualize=False)[0]
    ),
    Analysis("gpu_kernel_breakdown", _kernels),
    Analysis("gpu_user_annotations", _annotations),
    Analysis(
        "kernels_with_user_annotations",
        _by_rank(lambda s, rank: s.hta.get_gpu_kernels_with_user_annotations(rank=rank)),
    ),
    Analysis("cuda_kernel_launch_stats", _launch_stats),
    Analysis("queue_length_summary", lambda s: s.hta.get_queue_length_summary(ranks=s.ranks)),
    Analysis("blocked_on_full_queue", _full_queue),
    Analysis("memory_bandwidth_summary", lambda s: s.hta.get_memory_bw_summary(ranks=s.ranks)),
    Analysis("potential_stragglers", _stragglers, obstacle=_no_stragglers),
    Analysis("frequent_kernel_sequences", _sequences, obstacle=_no_sequences),
    Analysis("critical_path", _critical_path),
    Analysis(
        "aten_op_kernels_and_delay",
        # one rank per call: with several, HTA counts the launches of each rank for all later ones as well
        _by_rank(lambda s, rank: s.hta.get_aten_op_kernels_and_delay(ranks=[rank])[rank]),
        obstacle=_too_many_launches,
    ),
)


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
# 525 MiB, docs/decisions/hta.md); it reads less now (hta_worker.py), so that there is room for what the analyses need
BASE_BYTES = 300 << 20  # its libraries
KEPT, READING = (
    2.0,
    5.5,
)  # times the unpacked size: of every rank that it holds, of the largest while it is read


def find_free_bytes(cgroup: Path = Path("/sys/fs/cgroup"), meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the free memory of the machine, or of the container's limit."""
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
    """Return the lowest ranks whose traces, of these unpacked sizes, HTA can hold together; empty if not even the
    first.
    """
    ranks = sorted(raw_bytes)
    needed = [
        estimate_bytes([raw_bytes[rank] for rank in ranks[:count]]) for count in range(1, len(ranks) + 1)
    ]
    return ranks[: sum(size <= allowed_bytes for size in needed)]


def estimate_bytes(raw_bytes: Sequence[int]) -> int:
    """Return the memory of HTA's process for traces of these unpacked sizes, read one after the other."""
    return int(BASE_BYTES + KEPT * sum(raw_bytes) + (READING - KEPT) * max(raw_bytes))


def apply_memory_limit(limit_bytes: int) -> None:
    """Make this process fail with MemoryError above this size of its own memory; its children inherit the limit.

    Private data count, not code or shared files (RLIMIT_DATA): libraries map much that they never touch.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))


def describe_failure(text: str, limit_bytes: int) -> str:
    """Return the status table's text for an error, or for the last line of a process; with the limit if it was the
    cause.
    """
    cause = f"needs more than its {limit_bytes / 2**30:.3g} GiB of memory"
    return f"{cause} ({text}) [SL-hta-memory]" if lacked_memory(text) else text


def lacked_memory(text: str) -> bool:
    """Return whether an error, or its text, is about missing memory."""
    return NO_MEMORY.search(text) is not None
