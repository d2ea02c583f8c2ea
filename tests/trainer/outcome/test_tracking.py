"""Which steps count, in a process of its own: the collectives of one, the times of those that nothing disturbs."""

from __future__ import annotations

import pytest

from trainer.measuring.wire import WireCounter
from trainer.outcome.tracking import Recorder


@pytest.mark.parametrize(
    ("profiled", "counted"),
    [((), 3), ((1, 2), 3), ((3,), 4), ((2, 3, 4, 5), 6), ((9,), 3)],
)
def test_collectives_are_counted_in_one_step_from_the_third_on_that_is_not_profiled(profiled, counted):
    """Not in the first two: DDP sorts its buckets anew after the first, DeepSpeed sets itself up."""
    recorder = Recorder(None, 1, 10)
    watched = []
    for step in range(1, 11):
        with recorder.count_wire(step in profiled) as watch:
            if isinstance(watch, WireCounter):
                watched.append(step)
    assert watched == [counted] and recorder.wire is not None
