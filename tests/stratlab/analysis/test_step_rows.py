"""Where a step's time went, on traces whose answer is known."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratlab.analysis.collective_calls import CallKey, CallKind, Calls, Match
from stratlab.analysis.lanes import POINT_TO_POINT, Lanes
from stratlab.analysis.rank import RankAnalysis, finish_rank, read_rank_trace
from stratlab.analysis.step_rows import StepRow, build_means
from stratlab.analysis.time_breakdown import SETS, MeasuredTrace, Segments, build_exposure, build_partition
from stratlab.traces.trace import Window
from stratlab_spec.trace_events import length
from tests.codes import find_codes
from tests.stratlab.simulated.small import (
    COMPUTE_STREAM,
    GPU,
    STEP_MS,
    TraceWriter,
    add_gpu_step,
    build_cpu_trace,
    build_gpu_trace,
)


def analyse(trace: TraceWriter, folder: Path) -> RankAnalysis:
    return finish_rank(read_rank_trace(0, trace.write(folder / "rank0_trace.json")), {}, is_pipeline=False)


def times(row: StepRow) -> dict[str, float]:
    return {name: value for name, value in asdict(row).items() if name.endswith("_ms")}


def codes(rank: RankAnalysis) -> list[str]:
    return [code for finding in rank.findings for code in find_codes(finding.reason)]


def parts(row: StepRow) -> float:
    return row.compute_ms + row.comm_exposed_ms + row.copy_exposed_ms + row.idle_ms


def test_gpu_step_has_the_known_answer(tmp_path):
    found = analyse(build_gpu_trace(0), tmp_path)
    assert found.source == "gpu"
    assert [row.step for row in found.rows] == [10, 11, 12]
    for row in found.rows:
        assert times(row) == pytest.approx(STEP_MS)
    assert found.findings == []


def test_kernel_counts_by_its_launch_when_the_gpu_lags(tmp_path):
    """The GPU works 700 us behind: kernels of a step run under the next step's label, and still count as its own."""
    found = analyse(build_gpu_trace(0, lag_us=700), tmp_path)
    first, second, third = found.rows
    # the first step has to wait for its first kernel, which was launched after it began: 700 us more
    waiting = {"idle_ms": 0.23 + 0.65, "host_wait_ms": 0.0, "launch_wait_ms": 0.75}
    assert times(first) == pytest.approx(STEP_MS | {"step_ms": 1.65} | waiting)
    # from the end of the last kernel before to the end of its own last one
    steady = STEP_MS | {
        "data_wait_ms": 0.0,
        "host_wait_ms": 0.0,
        "launch_wait_ms": 0.0,
        "other_idle_ms": 0.23,
    }
    assert times(second) == pytest.approx(steady)
    assert times(third) == pytest.approx(steady)
    assert sum(row.step_ms for row in found.rows) == pytest.approx(3.65)


def test_time_between_two_labels_belongs_to_no_step(tmp_path):
    trace = TraceWriter(0)
    add_gpu_step(trace, 10, 1000)
    trace.kernel("validation", 2100, 2200, 4000)
    add_gpu_step(trace, 11, 5000)
    for row in analyse(trace, tmp_path).rows:
        assert times(row) == pytest.approx(STEP_MS)


def test_cpu_step_has_the_known_answer(tmp_path):
    found = analyse(build_cpu_trace(0), tmp_path)
    known = {
        "step_ms": 0.1,
        "host_step_ms": 0.1,
        "compute_ms": 0.07,  # not the collective's entry, not autograd's wrapper, not gloo's own thread
        "comm_ms": 0.04,
        "comm_overlap_ms": 0.02,
        "comm_exposed_ms": 0.02,
        "idle_ms": 0.01,
        "host_wait_ms": 0.01,
        "data_ms": 0.005,
        "forward_ms": 0.03,  # twice: two micro-batches
        "backward_ms": 0.03,
        "optimizer_ms": 0.015,
    }
    for row in found.rows:
        assert times(row) == pytest.approx(dict.fromkeys(times(row), 0.0) | known)


def test_phase_without_a_label_is_unknown_and_named(tmp_path):
    found = analyse(build_gpu_trace(0, without="optimizer"), tmp_path)
    assert found.phases == ["data", "forward", "backward"]
    assert [row.optimizer_ms for row in found.rows] == [None] * 3
    assert codes(found) == ["SL-phase-no-label"]
    assert build_means(found.rows)["optimizer_ms"] is None
    assert build_means(found.rows)["forward_ms"] == pytest.approx(0.3)


def test_trace_without_any_step_counts_as_one(tmp_path):
    trace = build_gpu_trace(0)
    trace.events = [event for event in trace.events if event["cat"] != "user_annotation"]
    trace.add("kernel", "gemm", 5000.5, 5100.5, COMPUTE_STREAM, GPU, stream=COMPUTE_STREAM)
    found = analyse(trace, tmp_path)
    (row,) = found.rows
    assert (row.step, found.steps_from, found.durations.in_steps) == (1, "recording", 13)
    assert (row.step_ms, row.compute_ms, row.comm_ms) == pytest.approx((2.95, 2.05, 0.9))
    assert (row.comm_exposed_ms, row.copy_exposed_ms) == pytest.approx((0.3, 0.06))
    assert parts(row) == pytest.approx(row.step_ms, abs=1e-9)
    assert "SL-steps-of-recording" in codes(found)


def test_step_without_gpu_work_is_left_out_and_named(tmp_path):
    trace = build_gpu_trace(0)
    trace.label("## Training Step 13 ##", 8000.5, 9000.5)
    found = analyse(trace, tmp_path)
    assert [row.step for row in found.rows] == [10, 11, 12]
    assert codes(found) == ["SL-steps-without-gpu"] and "1 of 4 " in found.findings[0].reason


def test_data_label_before_the_step_belongs_to_it(tmp_path):
    trace = TraceWriter(0)
    for i in range(2):
        trace.label("## Data Loading ##", 1000 + 2000 * i, 1300 + 2000 * i)
        add_gpu_step(trace, 10 + i, 1400 + 2000 * i, without="data")
    assert [row.data_ms for row in analyse(trace, tmp_path).rows] == pytest.approx([0.3, 0.3])


LIGHTNING = "[pl][profile]"


def test_labels_of_data_loading(tmp_path):
    labels = ("enumerate(DataPipe)#MyPipe", f"{LIGHTNING}get_train_batch", "TrainUnit.train.next(data_iter)")
    labels += (f"{LIGHTNING}[_TrainingEpochLoop].train_dataloader_next",)
    others = (f"{LIGHTNING}[LightningDataModule]Data.train_dataloader", "[_Loop].train_dataloader_next")
    for label in (*labels, *others):
        trace = TraceWriter(0)
        trace.label("ProfilerStep#1", 1000, 2000)
        trace.label(label, 1000, 1300)
        trace.kernel("gemm", 1310, 1320, 1900)
        (row,) = analyse(trace, tmp_path).rows
        assert row.data_ms == row.data_wait_ms == (0.3 if label in labels else None), label


@pytest.mark.parametrize(
    "inner", ["Optimizer.zero_grad#SGD.zero_grad", f"{LIGHTNING}[Strategy]DDPStrategy.backward"]
)
def test_an_optimizer_step_around_forward_and_backward_tells_no_phase(tmp_path, inner):
    trace = TraceWriter(0)
    trace.label("ProfilerStep#1", 1000, 2000)
    trace.label("Optimizer.step#SGD.step", 1100, 1950)
    trace.label(inner, 1110, 1400)
    trace.kernel("gemm", 1310, 1320, 1900)
    found = analyse(trace, tmp_path)
    assert "optimizer" not in found.phases
    assert [row.optimizer_ms for row in found.rows] == [None]


def test_waiting_for_data_is_unknown_without_a_label(tmp_path):
    found = analyse(build_gpu_trace(0, without="data"), tmp_path)
    assert (
        {row.data_wait_ms for row in found.rows} == {row.data_wait_ms for row in found.phase_rows} == {None}
    )
    assert ("data", "", "") not in found.parts_ns
    assert sum(found.parts_ns.values()) == pytest.approx(sum(row.step_ms for row in found.rows) * 1e6)


def build_lanes(*events: tuple[str, int, int, int], source: str = "gpu") -> Lanes:
    """Of (kind, issued, start, end) in ns; kind: compute, comm or copy."""
    kinds = [kind for kind, *_ in events]
    issued, starts, ends = (np.array([event[i] for event in events], np.int64) for i in (1, 2, 3))
    return Lanes(
        source=source,  # type: ignore[arg-type]
        event=np.arange(len(events)),
        starts=starts,
        ends=ends,
        issued=issued,
        launched=issued,
        is_compute=np.array([kind == "compute" for kind in kinds]),
        is_communication=np.array([kind == "comm" for kind in kinds]),
        is_copy=np.array([kind == "copy" for kind in kinds]),
        names=["event"],
        name=np.zeros(len(events), np.int32),
        entry=np.full(len(events), -1, np.int64),
        label=np.full(len(events), -1, np.int32),
        unlaunched=0,
        in_flight=0,
    )


def build_calls(**spans: tuple[int, int]) -> Calls:
    """A call per collective."""
    keys = [CallKey(name, name, "") for name in spans]
    starts, ends = (np.array([span[i] for span in spans.values()], np.int64) for i in (0, 1))
    number = np.arange(len(spans), dtype=np.int32)
    return Calls(0, [CallKind(key, "") for key in keys], number, starts, ends, np.full(len(spans), -1))


def test_time_in_which_two_collectives_run_at_once_is_exposed_once():
    """compute 0-10, all_gather 5-40, broadcast 30-50, copy 45-60, idle 60-70: five of them, side by side."""
    lanes = build_lanes(
        ("compute", 0, 0, 10), ("comm", 1, 5, 40), ("comm", 2, 30, 50), ("copy", 3, 45, 60)
    )  # fmt: skip
    calls = build_calls(all_gather=(5, 40), broadcast=(30, 50))
    found = build_exposure(lanes, calls, [], 0, 70)
    sizes = {name: length(part) for name, part in found.sets.items()}
    assert (sizes["comm"], sizes["comm_overlap"], sizes["comm_exposed"]) == (45, 5, 40)
    assert (sizes["compute"], sizes["copy_exposed"], sizes["idle"]) == (10, 10, 10)
    parts = {key.collective: length(part) for key, part in found.collectives.items()}
    assert parts == {"all_gather": 30, "broadcast": 10}  # 30-40 belongs to the first in the alphabet
    assert sum(parts.values()) == sizes["comm_exposed"]
    assert sizes["compute"] + sizes["comm_exposed"] + sizes["copy_exposed"] + sizes["idle"] == 70


def test_an_event_that_is_issued_at_a_border_belongs_to_the_step_behind_it():
    """Three events, issued at 10, 20 and 30; the GPU is late: they end at 15, 45 and 60."""
    lanes = build_lanes(("compute", 10, 12, 15), ("compute", 20, 25, 45), ("compute", 30, 50, 60))
    assert lanes.issued_within(10, 20).tolist() == [0]
    assert lanes.issued_within(20, 30).tolist() == [1]
    assert lanes.issued_within(10, 30).tolist() == [0, 1] and lanes.issued_within(0, 99).tolist() == [0, 1, 2]
    borders = np.array([5, 10, 19, 20, 21, 30, 31, 90], np.int64)
    # not before its own time, and not before the end of all that was issued strictly earlier
    assert lanes.settle(borders).tolist() == [5, 10, 19, 20, 45, 45, 60, 90]
    on_host = build_lanes(("compute", 10, 10, 99), source="cpu")
    assert on_host.settle(np.array([20, 30], np.int64)).tolist() == [20, 30], "a border is where it is"


SEND, REDUCE = CallKey(POINT_TO_POINT, "send", "pp"), CallKey("all_reduce", "reduce", "dp_shard")
KINDS = [CallKind(SEND, "0, 1"), CallKind(REDUCE, "0, 2")]


def ns(*values: int) -> Any:
    return np.array(values, np.int64)


def measure() -> tuple[MeasuredTrace, dict[CallKind, Match]]:
    """100 ns. A send from 10 to 40 with an all-reduce beside it from 20 to 60, which needs 15 on the last rank: the
    send is exposed to 40, the all-reduce behind it, and it waits until 45."""
    segments = Segments([Window(1, 0, 100)], [Window(1, 0, 100)], ns(0), ns(100), ns(0), ns(0))
    exposed = {SEND: (ns(10), ns(40)), REDUCE: (ns(40), ns(60))}
    calls = Calls(0, KINDS, np.array([0, 1], np.int32), ns(10, 20), ns(40, 60), ns(-1, -1))
    times = {name: ns(0) for name in SETS} | {"comm_exposed": ns(50)}
    matches = {KINDS[1]: Match(ns(15), ns(40), np.array([2], np.int32), ranks=2)}
    return MeasuredTrace(segments, times, exposed, calls), matches


def test_in_a_pipeline_what_is_exposed_between_stages_is_bubble_and_nothing_else():
    measured, matches = measure()
    found = build_partition(measured, matches, is_pipeline=True)
    assert (found.times["bubble"], found.times["straggler"]) == (ns(30), ns(5))
    assert found.transfer == {REDUCE: ns(15)}
    whole = found.times["bubble"] + found.times["straggler"] + sum(found.transfer.values())
    assert whole == measured.times["comm_exposed"]
