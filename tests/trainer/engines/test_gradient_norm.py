from __future__ import annotations

import pytest
import torch

from trainer.engines.torch_engine import LONG, ROW, total_norm, whole_norm


@pytest.mark.parametrize("size", [ROW, LONG + 1, 20_000_003])
def test_the_norm_is_that_of_fp64_however_long_a_tensor_is(size: int) -> None:
    """torch's own is 7e-4 too small at 20 million."""
    parts = [torch.randn(size, generator=torch.Generator().manual_seed(1)), torch.randn(5, 7)]
    wanted = torch.cat([part.flatten().double() for part in parts]).norm()
    assert total_norm(parts).item() == pytest.approx(wanted.item(), rel=1e-5)
    assert whole_norm(parts, "cpu").item() == total_norm(parts).item()


def test_short_tensors_are_torch_s_own_to_the_last_bit_and_long_ones_of_any_form() -> None:
    parts = [torch.randn(300, 300), torch.randn(8)]
    assert torch.equal(total_norm(parts), torch.nn.utils.get_total_norm(parts))
    wide = torch.randn(1100, 1000).t()
    assert total_norm([wide]).item() == pytest.approx(wide.double().norm().item(), rel=1e-6)
