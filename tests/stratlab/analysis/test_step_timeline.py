"""The one step that the page draws: which it is, and that its picture holds what its numbers say."""

from dataclasses import asdict

import numpy as np
import pytest

from stratlab.analysis.measure import measure_traces
from stratlab.analysis.rank import finish_rank, read_rank_trace
from stratlab.analysis.time_breakdown import BINS, STATES, choose_states, choose_step, coarsen
from tests.stratlab.simulated.small import COMM_STREAM, build_gpu_trace


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


def test_the_exposed_transfer_of_a_pipeline_is_its_bubble(tmp_path):
    trace = build_gpu_trace(0)
    trace.kernel("ncclDevKernel_SendRecv(x)", 6960, 6970, 6990, stream=COMM_STREAM)
    reading = read_rank_trace(0, trace.write(tmp_path / "rank0_trace.json"))
    for is_pipeline in (True, False):
        drawn = finish_rank(reading, {}, is_pipeline, 11).drawn
        assert drawn and ((drawn.states == STATES.index("bubble")).sum() > 0) == is_pipeline
    assert finish_rank(reading, {}, False, 99).drawn is None


def test_what_is_shorter_than_a_bin_keeps_its_share():
    shares = np.zeros((2, len(STATES), 400), np.float32)
    shares[:, 0, :200], shares[:, 5, :200], shares[:, 2, 200:] = 0.25, 0.75, 1.0
    for states in choose_states(shares):
        assert [(states[:200] == state).sum() for state in (0, 5)] == [50, 150]
        assert set(states[200:].tolist()) == {2}
        coarse = coarsen(states, 4)
        assert [(coarse == state).sum() for state in (0, 5, 2)] == pytest.approx([12.5, 37.5, 50], abs=1)


def test_the_drawn_step_is_the_middle_one_of_those_that_most_ranks_have():
    assert choose_step({10: [9, 9], 11: [1, 1], 12: [5, 6], 13: [3]}) == 12
    assert choose_step({10: [9], 11: [1], 12: [5], 13: [3]}) == 13
    assert choose_step({}) is None
