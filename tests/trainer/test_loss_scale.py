from __future__ import annotations

import pytest

from trainer.failures import NOT_FINITE, NotFinite, exit_code
from trainer.loss_scale import LossScale


def test_a_loss_scale_that_cannot_fall_any_further_ends_the_run_with_a_sentence() -> None:
    scale = LossScale(True)
    for _ in range(16):
        scale.update(True)
    assert scale.scale == 1.0
    scale.update(False)
    with pytest.raises(
        NotFinite, match="loss scale of 1 either, the lowest.*TRAINER_PRECISION=bf16"
    ) as caught:
        scale.update(True)
    assert exit_code(caught.value) == NOT_FINITE
    unscaled = LossScale(False)
    unscaled.update(True)
    assert unscaled.scale == 1.0
