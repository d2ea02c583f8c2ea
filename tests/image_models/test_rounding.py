"""Batch norm over few samples enlarges rounding, warm-up holds it below the gates, and a mistake stays above them."""

from __future__ import annotations

import pytest
import torch

from tests.image_models import rounding
from tests.image_models.found import NORM_PARITY, PARITY
from tests.image_models.rounding import FELT, FINER, ROUNDING, Steps, read_config, train

STEPS = 2
HOW = ({"moved_by": ROUNDING}, {"felt": FELT})


def run(warm: bool, dtype: torch.dtype, moved_by: float = 0.0, felt: float = 1.0) -> Steps:
    return train(read_config("mobilenet", warm), dtype, moved_by, felt, STEPS)


@pytest.mark.slow
def test_what_rounding_becomes_is_there_in_fp64_and_goes_with_its_cause():
    exact = run(False, torch.float64)
    moved, finer = (run(False, torch.float64, by).apart(exact)["norms"] for by in (ROUNDING, FINER))
    assert moved[1] > 500 * ROUNDING and moved[1] > 50 * moved[0], "a step enlarges it"
    assert moved[1] > 100 * finer[1], "a wrong gradient would stay"


def test_with_warm_up_rounding_stays_below_the_gates_and_a_mistake_above():
    single = run(True, torch.float32)
    moved, mistaken = (run(True, torch.float32, **how).apart(single) for how in HOW)
    # without warm-up 8e-5 of the norm in the second step, and 2e-3 in the third
    assert max(moved["losses"]) < 0.1 * PARITY and max(moved["norms"]) < 0.01 * NORM_PARITY
    assert min(mistaken["norms"]) > 10 * NORM_PARITY and mistaken["first_gradient"] > 0.1


def test_a_network_that_there_is_not(capsys, tmp_path):
    assert rounding.main(["resnet9"], tmp_path / "found.json") == 2
    assert "resnet9: expected of cnn, mobilenet" in capsys.readouterr().err
