"""The analyses of Holistic Trace Analysis that are run: how each is called, and when it does not apply.

`hta` is the import name of `traceinsight`. Its traps (0.6.1): `num_kernels` sums up the rest under wrong columns;
the last profiler step is dropped by default; several analyses look at rank 0 only unless told;
`generate_trace_with_counters` writes next to its input and is never called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ALL_KERNELS = {"num_kernels": 100_000, "duration_ratio": 1.0}
MOST_LAUNCHES = 20_000  # of one rank, for the one analysis that is quadratic
NO_GPU = "needs GPU kernels, and these are CPU traces [SL-hta-no-gpu]"


@dataclass(frozen=True)
class Scene:
    """The loaded traces, and what of them decides whether an analysis applies."""

    hta: Any  # hta.trace_analysis.TraceAnalysis
    ranks: list[int]
    has_gpu: bool
    names: list[str]
    scratch: str
    memory_bytes: int = 0  # the process's limit


@dataclass(frozen=True)
class Analysis:
    """One analysis: how it is called, and why it does not apply (None = it does)."""

    name: str
    call: Callable[[Scene], Any]
    needs_gpu: bool = True
    obstacle: Callable[[Scene], str | None] = lambda scene: None


def _no_communication(scene: Scene) -> str | None:
    found = any(name.startswith(("nccl", "hip", "hccl")) or "ncclKernel" in name for name in scene.names)
    return (
        None if found else "needs communication kernels, and these traces hold none [SL-hta-no-communication]"
    )


def _no_stragglers(scene: Scene) -> str | None:
    if len(scene.ranks) < 2:
        return "needs two ranks [SL-hta-one-rank]"
    found = any(name.startswith("ncclKernel") for name in scene.names)
    return (
        None
        if found
        else "HTA looks for ncclKernel*, which NCCL has not called its kernels since 2.18 [SL-hta-nccl-names]"
    )


def _no_sequences(scene: Scene) -> str | None:
    return (
        None
        if "aten::linear" in scene.names
        else "is asked for aten::linear, which does not occur [SL-hta-no-linear]"
    )


def _too_many_launches(scene: Scene) -> str | None:
    """HTA searches all operators for each launch: the time grows with the square."""
    most = max(int((scene.hta.t.get_trace(rank)["stream"] != -1).sum()) for rank in scene.ranks)
    return (
        f"{most} kernels of one rank, HTA needs minutes above {MOST_LAUNCHES} [SL-hta-many-launches]"
        if most > MOST_LAUNCHES
        else None
    )


def _critical_path(scene: Scene) -> Any:
    """What bound the first profiled step of the first rank, in percent of its duration."""
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


ANALYSES = (
    Analysis("profiler_steps", _profiler_steps, needs_gpu=False),
    Analysis(
        "cpu_user_annotations",
        lambda s: s.hta.get_gpu_user_annotation_breakdown(
            use_gpu_annotation=False, visualize=False, **ALL_KERNELS
        ),
        needs_gpu=False,
    ),
    Analysis("temporal_breakdown", lambda s: s.hta.get_temporal_breakdown(visualize=False)),
    Analysis(
        "comm_comp_overlap",
        lambda s: s.hta.get_comm_comp_overlap(visualize=False),
        obstacle=_no_communication,
    ),
    Analysis(
        "idle_time_breakdown", lambda s: s.hta.get_idle_time_breakdown(ranks=s.ranks, visualize=False)[0]
    ),
    Analysis(
        "gpu_kernel_breakdown",
        lambda s: dict(
            zip(
                ("types", "kernels"),
                s.hta.get_gpu_kernel_breakdown(visualize=False, **ALL_KERNELS),
                strict=True,
            )
        ),
    ),
    Analysis(
        "gpu_user_annotations",
        lambda s: s.hta.get_gpu_user_annotation_breakdown(visualize=False, **ALL_KERNELS),
    ),
    Analysis(
        "kernels_with_user_annotations",
        lambda s: {f"rank{r}": s.hta.get_gpu_kernels_with_user_annotations(rank=r) for r in s.ranks},
    ),
    Analysis(
        "cuda_kernel_launch_stats",
        lambda s: {
            f"rank{r}": frame
            for r, frame in s.hta.get_cuda_kernel_launch_stats(ranks=s.ranks, visualize=False).items()
        },
    ),
    Analysis("queue_length_summary", lambda s: s.hta.get_queue_length_summary(ranks=s.ranks)),
    Analysis(
        "blocked_on_full_queue",
        lambda s: s.hta.get_time_spent_blocked_on_full_queue(
            s.hta.get_queue_length_time_series(ranks=s.ranks)
        ),
    ),
    Analysis("memory_bandwidth_summary", lambda s: s.hta.get_memory_bw_summary(ranks=s.ranks)),
    Analysis("potential_stragglers", _stragglers, obstacle=_no_stragglers),
    Analysis(
        "frequent_kernel_sequences",
        lambda s: s.hta.get_frequent_cuda_kernel_sequences(
            operator_name="aten::linear", output_dir=s.scratch, rank=s.ranks[0], visualize=False
        ),
        obstacle=_no_sequences,
    ),
    Analysis("critical_path", _critical_path),
    Analysis(
        "aten_op_kernels_and_delay",
        # one rank per call: asked for several, HTA counts the launches of each rank for all later ones as well
        lambda s: {f"rank{r}": s.hta.get_aten_op_kernels_and_delay(ranks=[r])[r] for r in s.ranks},
        obstacle=_too_many_launches,
    ),
)
