"""What a run says of its grace period, by hand."""

from __future__ import annotations

import pytest

from tests.codes import find_codes
from trainer.checkpoint.store import find_grace_problem


@pytest.mark.parametrize(
    ("checkpoint_s", "grace_s", "wish"),
    [
        (52.0, 120, None),
        (53.0, 120, 150),
        (7.0, 20, 30),
        (6.0, 20, None),
    ],
)
def test_a_checkpoint_may_take_half_of_what_a_stop_leaves(checkpoint_s, grace_s, wish):
    said = find_grace_problem(checkpoint_s, grace_s)
    assert (said is None) == (wish is None)
    if wish:
        assert said and find_codes(said) == ["SL-grace-short"]
        assert f"TRAINER_GRACE_S={wish} " in said and f"TRAINER_GRACE_S={grace_s}:" in said
        assert find_grace_problem(checkpoint_s, wish) is None
