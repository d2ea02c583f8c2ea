"""The states of a drawn step: those of the rule, computed bin after bin for all states."""

import numpy as np
import pytest

from stratlab.analysis.time_breakdown import choose_states

STATES, BINS = 5, 400


def choose_plainly(shares):
    """The rule, one bin after the other."""
    owed, chosen = np.zeros(shares.shape[:2], np.float32), []
    for place in range(shares.shape[2]):
        here = shares[:, :, place]
        owed += here
        best = np.where(here > 0, owed, -np.inf).argmax(axis=1)
        owed[np.arange(len(shares)), best] -= 1
        chosen.append(best)
    return np.stack(chosen, axis=1)


@pytest.mark.parametrize("shared", [0.0, 0.05, 0.6, 1.0])
@pytest.mark.parametrize("whole", [True, False])
def test_states_are_those_of_the_rule(shared, whole):
    draw = np.random.default_rng(int(100 * shared))
    shares = draw.random((3, STATES, BINS)) * (draw.random((3, STATES, BINS)) < 0.6)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-9) if whole else 1
    only = np.eye(STATES)[draw.integers(0, STATES, (3, BINS))].transpose(0, 2, 1)
    only[:, 1] += 1e-9 * (
        draw.random((3, BINS)) < 0.1
    )  # rounds to nothing beside a whole bin, but is present
    shares = np.where(draw.random((3, 1, BINS)) < shared, shares, only).astype(np.float32)
    assert (choose_states(shares) == choose_plainly(shares)).all()


def test_a_whole_bin_rounds_what_its_state_is_owed():
    first, second, other = np.eye(3)
    bins = [first * 2**-30 + other, second * 2**-31 + other, first, (first + second) * 2**-20]
    shares = np.array([bins], np.float32).transpose(0, 2, 1)
    assert choose_states(shares).tolist() == choose_plainly(shares).tolist() == [[2, 2, 0, 1]]
