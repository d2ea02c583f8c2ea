"""All ranks together: exact sums, the same numbers from any number of processes, and files that cannot be read."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from stratlab.analysis.measuring import measure
from stratlab.analysis.measuring.measure import measure_traces
from stratlab.analysis.reporting.report import build_parts
from tests.codes import find_codes
from tests.stratlab.simulated.small import build_cpu_trace, build_gpu_trace
from tests.stratlab.simulated.team import Scene, simulate

AXES = {"dp_replicate": 2, "dp_shard": 1}
MURDERER = Path("murderer.json")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Four simulated ranks, the last of them slow."""
    return simulate(tmp_path_factory.mktemp("team"), Scene(ranks=4, strategy="fsdp", slow=1.3)).files


def test_parts_sum_to_the_steps(files: dict[int, Path]) -> None:
    ranks = measure_traces(files, {"dp_shard": 4}).ranks
    for rank in ranks:
        assert sum(rank.parts_ns.values()) == sum(round(row.step_ms * 1e6) for row in rank.rows)
        for row in rank.rows:
            phases = [p for p in rank.phase_rows if p.step == row.step]
            for name in ("compute_ms", "comm_exposed_ms", "straggler_ms", "idle_ms", "copy_exposed_ms"):
                whole = round(getattr(row, name) * 1e6)
                assert sum(round(getattr(phase, name) * 1e6) for phase in phases) == whole, name
            assert sum(round(phase.span_ms * 1e6) for phase in phases) == round(row.step_ms * 1e6)
    steps = [row.step_ms for rank in ranks for row in rank.rows]
    parts = build_parts(ranks)
    assert sum(part["ms"] for part in parts) == pytest.approx(sum(steps) / len(steps), rel=1e-12)
    assert {p["collective"] for p in parts if p["part"] == "comm"} == {"all_gather", "reduce_scatter"}
    assert {p["axis"] for p in parts if p["part"] == "comm"} == {"dp_shard"}
    assert next(p["ms"] for p in parts if p["part"] == "straggler") > 0


def test_the_number_of_processes_changes_nothing(files: dict[int, Path]) -> None:
    alone, together = (measure_traces(files, {"dp_shard": 4}, processes=n) for n in (1, 2))
    assert [r.rows for r in alone.ranks] == [r.rows for r in together.ranks]
    assert [r.collectives for r in alone.ranks] == [r.collectives for r in together.ranks]
    assert [ends.tolist() for ends in alone.call_ends_ns.values()] == [
        ends.tolist() for ends in together.call_ends_ns.values()
    ]


def _read_or_die(item: measure.Work) -> Path | str:
    """Stands in for a process that the kernel kills for its memory."""
    if item[1].name == MURDERER.name:
        os.kill(os.getpid(), signal.SIGKILL)
    return measure._read_rank(item)


def test_a_killed_process_costs_its_own_rank_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {rank: build_gpu_trace(rank).write(tmp_path / f"rank{rank}_trace.json") for rank in range(3)}
    files[1] = files[1].rename(tmp_path / MURDERER)
    monkeypatch.setattr(measure, "READ", _read_or_die)
    measures = measure_traces(files, AXES, processes=2)
    assert [rank.rank for rank in measures.ranks] == [0, 2]
    (finding,) = measures.findings
    assert (finding.rank, finding.file) == (1, "murderer.json")
    assert find_codes(finding.reason) == ["SL-rank-process-killed"]


@pytest.mark.parametrize("processes", [None, 2])
def test_small_traces_and_a_pod_without_semaphores_start_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int | None
) -> None:
    def refuse(*_: object, **__: object) -> None:
        assert processes
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(measure, "ProcessPoolExecutor", refuse)
    files = {rank: build_cpu_trace(rank).write(tmp_path / f"{rank}.json") for rank in range(2)}
    assert len(measure_traces(files, AXES, processes=processes).ranks) == 2


def test_a_gpu_in_sight_that_nothing_used(tmp_path: Path) -> None:
    """Operators are left out of GPU traces; without a GPU event they are all there is."""
    trace = build_cpu_trace(0)
    trace.head["deviceProperties"] = [{"id": 0, "name": "idle GPU"}]
    (rank,) = measure_traces({0: trace.write(tmp_path / "0.json")}, AXES).ranks
    assert rank.source == "cpu" and rank.rows[0].compute_ms == 0.07


def test_point_to_point_is_the_bubble_of_a_pipeline_only(tmp_path: Path) -> None:
    scene = Scene(ranks=2, axes=(("pp", 2),), micro_batches=4)
    files = simulate(tmp_path, scene).files
    pipeline = measure_traces(files, {"pp": 2}).ranks[1].parts_ns
    assert pipeline["bubble", "", ""] > 0 and not [k for k in pipeline if k[1] == "send_recv"]
    other = measure_traces(files, {"dp": 2}).ranks[1].parts_ns
    assert other["bubble", "", ""] == 0
    assert sum(ns for (_, name, _), ns in other.items() if name == "send_recv") == pipeline["bubble", "", ""]
