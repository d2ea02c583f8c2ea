from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from trainer.failures import NOT_FINITE, exit_code
from trainer.settings.config import NotFinite
from trainer.settings.precision import LossScale, apply_whole_fp32, uses_tf32


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    """Set back afterwards; torch lets nobody patch them."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("cudnn", [False, True])
@pytest.mark.parametrize("matmul", [False, True])
def test_one_switch_for_tf32_is_enough_and_both_go_off(cudnn: bool, matmul: bool) -> None:
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = cudnn, matmul
    assert uses_tf32() is (cudnn or matmul)
    apply_whole_fp32()
    assert not uses_tf32()


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
