"""The arithmetic of DeepSpeed's CUDA quantizer in plain torch, from its sources: the reference for the kernel.

The sources of deepspeed 0.19.8 have it (ops/csrc/quantization/quantize.cu, includes/quantization_utils.h): per group
2**bits / (2 * largest) numbers to one, rounded to the nearest even, cut off at the largest. Two numbers of 4 bits
make a byte, the even one in the upper half. Tests on CPUs use it instead of the kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor


class StandInQuantizer:
    """A replacement for `trainer.engines.quantization.Quantizer`."""

    Symmetric = 0

    def quantize(self, values: Tensor, groups: int, bits: int, kind: int) -> list[Tensor]:
        assert values.dtype == torch.float16, "the kernel reads fp16, whatever it is given"
        assert kind == self.Symmetric and values.numel() % groups == 0
        rows = values.reshape(groups, -1).float()
        assert rows.shape[1] % 16 == 0, "16 elements to a thread"
        largest = rows.nan_to_num(0.0, 0.0, 0.0).abs().amax(1, keepdim=True)  # __hmax leaves NaN out
        scale = torch.where(largest == 0, 1.0, 2**bits / (2 * largest))
        top = 2 ** (bits - 1) - 1
        numbers = (rows * scale).nan_to_num(0.0).round().clamp(-top - 1, top).to(torch.int8)
        if bits == 4:
            pairs = numbers.view(groups, -1, 2)
            numbers = (pairs[..., 0] << 4) | (pairs[..., 1] & 15)
        shape = (*values.shape[:-1], values.shape[-1] * bits // 8)
        return [numbers.reshape(shape), 1 / scale]
