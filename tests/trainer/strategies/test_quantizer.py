"""Blocks of whole numbers, by the stand-in for the kernel (tests/quantizer_stand_in.py)."""

from __future__ import annotations

import os

import pytest
import torch

from benchmarks.gpu.quantizer_formula import StandInQuantizer
from stratlab_spec.settings.library_rules import BLOCK
from trainer.engines import quantization as quantizer
from trainer.engines.quantization import dequantize, load_quantizer, quantize


def there_and_back(values: torch.Tensor, bits: int) -> torch.Tensor:
    return dequantize(*quantize(StandInQuantizer(), values, bits), bits)


@pytest.mark.parametrize("bits", [4, 8])
def test_every_number_comes_back_within_half_a_step_and_the_largest_within_one(bits):
    values = torch.randn(7 * BLOCK, generator=torch.Generator().manual_seed(0))
    step = values.view(-1, BLOCK).abs().amax(1, keepdim=True) / 2 ** (bits - 1)
    error = (there_and_back(values, bits) - values).view(-1, BLOCK).abs() / step
    assert 0.4 < error.median() * 2 < 0.6 and error.max() <= 1.05
    inside = values.view(-1, BLOCK) < (2 ** (bits - 1) - 1.5) * step  # what is above is cut off
    assert error[inside].max() <= 0.56  # fp16 rounds a little before
    numbers, scales = quantize(StandInQuantizer(), torch.ones(2, 3 * BLOCK, dtype=torch.bfloat16), bits)
    assert (numbers.dtype, scales.dtype) == (torch.int8, torch.float32)
    assert numbers.shape == (6 * BLOCK * bits // 8,) and scales.shape == (6,), "bytes that are sent"


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [1e-37, 1e30])
def test_whole_steps_come_back_as_they_were_whatever_their_size(bits, size):
    """fp16, which the kernel reads, knows nothing below 6e-8 or above 65504."""
    half = 2 ** (bits - 1)
    numbers = torch.arange(2 * BLOCK) * 37 % (2 * half) - half
    unit = 2.0 ** torch.tensor(size).log2().round()
    assert torch.equal(there_and_back(numbers * unit, bits), numbers * unit)


def test_blocks_do_not_know_of_each_other():
    values = torch.cat([torch.full((BLOCK,), -1e9), torch.full((BLOCK,), -1e-9), torch.zeros(BLOCK)])
    assert torch.allclose(there_and_back(values, 4), values, rtol=1e-3, atol=0)


def test_a_block_with_a_number_that_is_none_comes_back_as_such():
    for bad in (float("nan"), float("-inf")):
        values = torch.ones(3 * BLOCK)
        values[BLOCK + 5] = bad
        found = there_and_back(values, 8).view(3, BLOCK)
        assert found[1].isnan().all() and found[[0, 2]].isfinite().all()


def test_deepspeed_compiles_for_the_gpu_that_is_there_whatever_the_machine_lists(monkeypatch):
    """A list with a letter in it, as CUDA's images set one, kept it from starting on an H200."""
    from deepspeed.ops import op_builder

    class Builder:
        def load(self):
            return os.environ.get("TORCH_CUDA_ARCH_LIST")

    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a")
    monkeypatch.setattr(quantizer, "PREBUILT_QUANTIZER", "deepspeed.ops.quantizer.nowhere")
    monkeypatch.setattr(op_builder, "QuantizerBuilder", Builder)
    assert load_quantizer() is None
    assert os.environ["TORCH_CUDA_ARCH_LIST"] == "9.0a"
