"""Batch norm over few samples enlarges rounding, warm-up holds it below the gates, and a mistake stays above them."""

import pytest
import torch

from tests.image_models.found import NORM_PARITY, PARITY
from tests.image_models.rounding import FELT, FINER, ROUNDING, Steps, read_config, train


@pytest.fixture(autouse=True)
def one_thread():
    """Beside other work two of them wait for each other for most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(warm: bool, moved_by: float = 0.0, felt: float = 1.0) -> Steps:
    smaller = read_config("mobilenet", warm).model_copy(update={"global_batch_size": 16})
    return train(smaller, torch.float32, moved_by, felt, 2)


def test_what_rounding_becomes_is_there_in_fp64_and_goes_with_its_cause():
    config = read_config("mobilenet", warm=False)
    exact, *others = (train(config, torch.float64, by, steps=3) for by in (0.0, ROUNDING, FINER))
    moved, finer = (other.apart(exact)["norms"] for other in others)
    assert moved[0] < 100 * ROUNDING and moved[2] > NORM_PARITY, "two steps enlarge it beyond the gate"
    assert moved[2] > 100 * finer[2], "a wrong gradient would stay"


def test_with_warm_up_rounding_stays_below_the_gates_and_a_mistake_above():
    single, cold = run(True), run(False)
    moved, mistaken = (run(True, **how).apart(single) for how in ({"moved_by": ROUNDING}, {"felt": FELT}))
    assert max(moved["losses"]) < 0.1 * PARITY and max(moved["norms"]) < 0.01 * NORM_PARITY
    assert max(mistaken["losses"]) > PARITY and min(mistaken["norms"]) > NORM_PARITY
    assert mistaken["first_gradient"] > 0.1
    assert run(False, ROUNDING).apart(cold)["norms"][1] > 0.1 * NORM_PARITY
