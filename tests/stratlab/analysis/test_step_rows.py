"""Where a step's time went, on traces whose answer is known.
The one step that the page draws: which it is, and that its picture holds what its numbers say."""

from dataclasses import asdict

import numpy as np
import pytest

from stratlab.analysis.collective_calls import CallKey, CallKind, Calls, Match
from stratlab.analysis.lanes import POINT_TO_POINT, Lanes
from stratlab.analysis.measure import measure_traces
from stratlab.analysis.time_breakdown import (
    BINS,
    SETS,
    STATES,
    MeasuredTrace,
    Segments,
    build_exposure,
    build_partition,
    choose_step,
)
from stratlab.traces.trace import Window
from stratlab_spec.trace_events import length
from tests.stratlab.simulated.small import build_gpu_trace


def times(row):
    return {name: value for name, value in asdict(row).items() if name.endswith("_ms")}


def parts(row):
    return row.compute_ms + row.comm_exposed_ms + row.copy_exposed_ms + row.idle_ms


def build_lanes(*events, source="gpu"):
    """Of (kind, issued, start, end) in ns; kind: compute, comm or copy."""
    kinds = [kind for kind, *_ in events]
    issued, starts, ends = (np.array([event[i] for event in events], np.int64) for i in (1, 2, 3))
    return Lanes(
        source=source,
        event=np.arange(len(events)),
        starts=starts,
        ends=ends,
        launch=issued,
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


def build_calls(**spans):
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
    assert lanes.issued_within(10, 20).tolist() == [0] and lanes.issued_within(20, 30).tolist() == [1]
    assert lanes.issued_within(10, 30).tolist() == [0, 1] and lanes.issued_within(0, 99).tolist() == [0, 1, 2]
    borders = np.array([5, 10, 19, 20, 21, 30, 31, 90], np.int64)
    # not before its own time, and not before the end of all that was issued strictly earlier
    assert lanes.settle(borders).tolist() == [5, 10, 19, 20, 45, 45, 60, 90]
    on_host = build_lanes(("compute", 10, 10, 99), source="cpu")
    assert on_host.settle(np.array([20, 30], np.int64)).tolist() == [20, 30], "a border is where it is"


SEND, REDUCE = CallKey(POINT_TO_POINT, "send", "pp"), CallKey("all_reduce", "reduce", "dp_shard")
KINDS = [CallKind(SEND, "0, 1"), CallKind(REDUCE, "0, 2")]


def ns(*values):
    return np.array(values, np.int64)


def measure():
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


def test_the_picture_of_a_step_sums_to_its_parts(tmp_path):
    """Rank 1 enters the all-reduce later: rank 0 waits for it."""
    files = {
        rank: build_gpu_trace(rank, **late).write(tmp_path / f"rank{rank}_trace.json")
        for rank, late in ((0, {}), (1, {"comm_start": 850}))
    }
    waited = 0.0
    for rank in measure_traces(files).ranks:
        assert rank.drawn and rank.drawn.step == 11 and rank.drawn.length_ns == 1_000_000
        parts = asdict(rank.rows[1])
        inner = {"comm_exposed": parts["straggler_ms"] + parts["bubble_ms"]}
        for state, name in enumerate(STATES):
            expected = parts[f"{name}_ms"] - inner.get(name, 0.0)
            assert (rank.drawn.states == state).mean() == pytest.approx(expected, abs=4 / BINS), name
        waited += parts["straggler_ms"]
        (call,) = rank.drawn.calls
        assert call.wait_ns == (250_000 if rank.rank == 0 else 0)
        assert call.name == "all_reduce" and call.end_ns - call.start_ns == round(parts["comm_ms"] * 1e6)
        assert [name for name, *_ in rank.drawn.phases if name != "other"] == [
            "data", "forward", "backward", "optimizer"
        ]  # fmt: skip
        assert rank.drawn.phases[-1][2] == rank.drawn.length_ns
    assert waited == pytest.approx(0.05)


def test_the_drawn_step_is_the_middle_one_of_those_that_most_ranks_have():
    assert choose_step({10: [9, 9], 11: [1, 1], 12: [5, 6], 13: [3]}) == 12
    assert choose_step({10: [9], 11: [1], 12: [5], 13: [3]}) == 13 and choose_step({}) is None
