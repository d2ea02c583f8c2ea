"""Real gloo runs of the trainer's worker with four strategies: whatever HTA can say of CPU traces, we say too."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratlab.analysis.measuring.measure import Measures, measure_traces
from stratlab.traces.labels import PROFILER_STEP
from stratlab.traces.trace import Trace, load_trace
from tests.ranks import run_ranks
from tests.stratlab.analysis.hta.loading import load_hta

STRATEGIES = {"ddp": 2, "fsdp": 2, "zero2": 2, "hsdp": 4}  # ranks
FIRST, PROFILED = 5, 3
# gloo has no reduce-scatter of its own, it reduces everything
COLLECTIVES = {
    "ddp": {"all_reduce"},
    "fsdp": {"all_gather", "all_reduce"},
    "hsdp": {"all_gather", "all_reduce"},
}
SETTINGS = {
    "TRAINER_MODEL": "cnn",
    "TRAINER_IMAGE_SIZE": "8",
    "TRAINER_STEPS": str(FIRST + PROFILED),
    "TRAINER_EVALUATE_EVERY": "0",
    "TRAINER_PROFILE_FIRST_STEP": str(FIRST),
    "TRAINER_PROFILE_WARMUP": "1",
    "TRAINER_PROFILE_STEPS": str(PROFILED),
    "TRAINER_GLOBAL_BATCH_SIZE": "32",
    "TRAINER_MICRO_BATCH_SIZE": "8",
    "STRATLAB_LAUNCHER": "test",
}


def be_worker() -> None:
    from trainer import worker

    raise SystemExit(worker.main())


@dataclass(frozen=True)
class Run:
    strategy: str
    files: dict[int, Path]
    traces: dict[int, Trace]
    hta: Any
    measures: Measures


@pytest.fixture(scope="session", params=STRATEGIES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    strategy, ranks = request.param, STRATEGIES[request.param]
    results = tmp_path_factory.mktemp("strategies")
    own = {"TRAINER_RUN": strategy, "TRAINER_STRATEGY": strategy, "TRAINER_RESULTS": str(results)}
    if strategy == "hsdp":
        own |= {"TRAINER_DP_REPLICATE": "2", "TRAINER_DP_SHARD": "2"}
    run_ranks(be_worker, ranks, env=SETTINGS | own)
    folder = results / "default" / strategy / "traces"
    files = {rank: folder / f"rank{rank}_trace.json" for rank in range(ranks)}
    traces = {rank: load_trace(path) for rank, path in files.items()}
    return Run(strategy, files, traces, load_hta(files), measure_traces(files, {"dp_replicate": ranks}))


def sum_by_name(names: list[str], us: list[float]) -> dict[str, tuple[int, float]]:
    counts: Counter[str] = Counter(names)
    sums: dict[str, float] = defaultdict(float)
    for name, duration in zip(names, us, strict=True):
        sums[name] += duration
    return {name: (counts[name], sums[name]) for name in counts}


def assert_same(ours: Mapping[str, tuple[int, float]], theirs: Mapping[str, tuple[int, float]]) -> None:
    assert {name: count for name, (count, _) in ours.items()} == {
        n: count for n, (count, _) in theirs.items()
    }
    for name, (_, total) in ours.items():
        assert total == pytest.approx(theirs[name][1], rel=1e-6, abs=1e-6), name


def find_seen(trace: Trace) -> Any:
    """Which events HTA looks at: none that begin after the last profiler step has ended."""
    last = trace.end[trace.matches(PROFILER_STEP)].max()
    return trace.ts <= last


def test_every_event_and_its_duration(run: Run) -> None:
    names = run.hta.t.symbol_table.get_sym_table()
    for rank, trace in run.traces.items():
        frame = run.hta.t.get_trace(rank)
        theirs = sum_by_name([names[i] for i in frame["name"]], frame["dur"].tolist())
        seen = np.flatnonzero(find_seen(trace))
        durations = ((trace.end - trace.ts)[seen] / 1e3).tolist()
        ours = sum_by_name([trace.names[i] for i in trace.name[seen]], durations)
        assert len(ours) > 50
        assert_same(ours, theirs)


def test_user_annotations(run: Run) -> None:
    frame = run.hta.get_gpu_user_annotation_breakdown(
        use_gpu_annotation=False, visualize=False, num_kernels=100_000, duration_ratio=1.0
    )
    for rank, trace in run.traces.items():
        label = np.flatnonzero(trace.in_category(("user_annotation",)) & find_seen(trace))
        ours = sum_by_name(
            [trace.names[i] for i in trace.name[label]], ((trace.end - trace.ts)[label] / 1e3).tolist()
        )
        mine = frame[frame["rank"] == rank]
        theirs = dict(zip(mine["name"], mine["sum (us)"], strict=True))
        assert set(ours) == set(theirs) >= {"## Forward Pass ##", "## Backward Pass ##", "## Data Loading ##"}
        for name, (count, total) in ours.items():
            assert total == pytest.approx(theirs[name], rel=1e-6), name
            (mean,) = mine.loc[mine["name"] == name, "mean (us)"]
            assert total / count == pytest.approx(mean, rel=1e-6), name


def test_steps(run: Run) -> None:
    for trace in run.traces.values():
        found = [PROFILER_STEP.search(name) for name in trace.names]
        assert sorted(int(m[1]) for m in found if m) == [int(s) for s in run.hta.get_profiler_steps()]
    assert {row.step for rank in run.measures.ranks for row in rank.rows} == set(
        range(FIRST, FIRST + PROFILED)
    )


def test_our_numbers_of_them(run: Run) -> None:
    """What HTA cannot say: steps, communication and phases, whose parts sum to the step."""
    assert [rank.rank for rank in run.measures.ranks] == list(run.files)
    for rank in run.measures.ranks:
        assert (rank.source, rank.backend, rank.kernels, rank.copies, rank.idle) == (
            "cpu",
            "gloo",
            [],
            [],
            [],
        )
        for row in rank.rows:
            parts = row.compute_ms + row.comm_exposed_ms + row.copy_exposed_ms + row.idle_ms
            assert parts == pytest.approx(row.step_ms, rel=1e-12)
            assert row.comm_ms > 0 and row.compute_ms > 0
        told = {row.collective for row in rank.collectives}
        assert told >= COLLECTIVES.get(run.strategy, set()) and told
        assert sum(rank.durations.kernels) == rank.durations.in_steps == 0
