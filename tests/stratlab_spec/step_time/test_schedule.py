"""The time of a pipeline's step, drawn by hand, and the formulas of equal stages."""

import pytest

from stratlab_spec.layout.pipeline_passes import order_passes
from stratlab_spec.step_time.schedule import simulate_pipeline


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 3), (2, 2), (4, 4), (4, 12), (8, 5)])
def test_equal_stages_take_the_time_of_the_formula(ranks, micro_batches):
    stages = ([1.0] * ranks, [2.0] * ranks)
    for schedule in ("gpipe", "1f1b"):
        found = simulate_pipeline(schedule, *stages, micro_batches)
        assert found.seconds == 3.0 * (micro_batches + ranks - 1)
        assert found.bubbles == [3.0 * (ranks - 1)] * ranks


def test_two_stages_per_rank_halve_the_bubble():
    found = simulate_pipeline("interleaved1f1b", [0.5] * 8, [1.0] * 8, 8)
    assert found.bubbles == [3.0 * 3 / 2] * 4 and found.busy == [24.0] * 4


def test_an_unequal_stage_sets_the_pace():
    """By hand, two micro-batches, F of 1 and 2 seconds, B of 2 and 4:

    rank 0  F0 F1 .. .. .. B0 .. .. .. B1      F0 0-1, F1 1-2, B0 7-9,  B1 13-15
    rank 1     F0    B0    F1    B1            F0 1-3, B0 3-7, F1 7-9,  B1 9-13
    """
    found = simulate_pipeline("1f1b", [1.0, 2.0], [2.0, 4.0], 2)
    assert found.seconds == 15 and found.busy == [6, 12]
    # a send of half a second delays F0, and B1 on its way back
    assert simulate_pipeline("1f1b", [1.0, 2.0], [2.0, 4.0], 2, 0.5).seconds == 16
    assert simulate_pipeline("1f1b", [1.0, 2.0], [2.0, 4.0], 2, [0.25]).seconds == 15.5


def test_the_interleaved_order_is_that_of_torch():
    """torch 2.13, ScheduleInterleaved1F1B: two ranks, four micro-batches; stage of the rank and micro-batch."""
    found = [
        f"{'B' if backward else 'F'}{chunk}{micro_batch}"
        for backward, chunk, micro_batch in order_passes("interleaved1f1b", 1, 2, 4)
    ]
    assert " ".join(found) == "F00 F01 F10 B10 F11 B11 F02 B00 F03 B01 F12 B12 F13 B13 B02 B03"
    with pytest.raises(AssertionError):
        order_passes("interleaved1f1b", 0, 4, 9)
