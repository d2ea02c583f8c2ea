from __future__ import annotations

import pytest
import torch

from stratlab_spec.exit_codes import NOT_FINITE, NotFinite, exit_code
from tests.codes import find_codes
from trainer.models.mixed_precision import LossScale


def test_a_loss_scale_that_cannot_fall_any_further_ends_the_run_with_a_sentence() -> None:
    scale = LossScale(True)
    for _ in range(16):
        scale.update(True)
    assert scale.scale == 1.0
    scale.update(False)
    with pytest.raises(NotFinite) as caught:
        scale.update(True)
    assert exit_code(caught.value) == NOT_FINITE and find_codes(caught.value) == ["SL-loss-scale-floor"]
    unscaled = LossScale(False)
    unscaled.update(True)
    assert unscaled.scale == 1.0


def test_the_scale_grows_after_so_many_good_steps_and_no_earlier() -> None:
    scale = LossScale(True)
    first = scale.scale
    for _ in range(LossScale.INTERVAL - 1):
        scale.update(False)
    assert scale.scale == first
    scale.update(False)
    assert (scale.scale, scale.good_steps) == (2 * first, 0)
    scale.update(True)
    assert scale.scale == first


def test_the_scale_is_taken_out_of_gradients_and_norm_and_not_looked_for_where_there_is_none() -> None:
    scale, gradient = LossScale(True), torch.full((3,), 2.0**17)
    norm, skip = scale.take_out(iter([gradient]), torch.tensor(2.0**18))
    assert gradient.tolist() == [2.0] * 3 and norm.item() == 4.0 and not skip
    asked: list[torch.Tensor] = []
    whole = torch.tensor(3.0)
    assert LossScale(False).take_out((asked.append(gradient) or gradient for _ in range(2)), whole) == (
        whole,
        False,
    )
    assert not asked
