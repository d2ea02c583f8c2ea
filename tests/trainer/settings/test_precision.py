from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from trainer.settings.precision import apply_whole_fp32, uses_tf32


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
