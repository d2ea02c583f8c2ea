"""Tensors in whole numbers of 8 or 4 bits with one scale per block: DeepSpeed's CUDA kernel, and what it leaves open.

The kernel reads fp16 (deepspeed 0.19.8, ops/csrc/quantization/pt_binding.cpp casts data_ptr to __half*, whatever the
tensor holds). Gradients lie far below what fp16 can tell apart, so each block is brought to a largest number between
1/2 and 1 first, by a power of two that its scale gets back. Infinity and NaN would get lost in the kernel, which takes
the larger of two numbers by __hmax: a block that has one comes back as NaN, and the step is skipped everywhere.

Numbers are unpacked in plain torch: one multiplication. The kernel's dequantize_fp32 writes eight numbers into room for
four (dequantization_utils.h: `chunk` counts in halves, `_to_global` in T).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.settings.deepspeed_rules import PREBUILT_QUANTIZER
from trainer.settings.quantized_shares import BLOCK

ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"
SMALLEST_EXPONENT = -126
"""Of an fp32 number with all its bits."""


class Quantizer(Protocol):
    """What is used of DeepSpeed's module."""

    Symmetric: Any

    def quantize(self, values: Tensor, groups: int, bits: int, kind: Any, /) -> Sequence[Tensor]:
        """fp16 in, (int8, with 4 bits two numbers to a byte, even elements in the upper half; fp32 scales) out."""
        ...


def load_quantizer() -> Quantizer:
    """The one that an image was built with (by images/trainer/quantizer.py), or else DeepSpeed compiles it now."""
    try:
        module: Quantizer = importlib.import_module(PREBUILT_QUANTIZER)
    except ModuleNotFoundError:
        from deepspeed.ops.op_builder import QuantizerBuilder

        with _for_this_gpu():
            module = QuantizerBuilder().load()
    return module


@contextmanager
def _for_this_gpu() -> Iterator[None]:
    """Without a list of architectures of the machine's: DeepSpeed reads no letters in it ("9.0a" -> ValueError: invalid
    literal for int(), 0.19.8, op_builder/builder.py), and compiles for the GPU that is there without one."""
    listed = os.environ.pop(ARCHITECTURES, None)
    try:
        yield
    finally:
        if listed is not None:
            os.environ[ARCHITECTURES] = listed


def quantize(quantizer: Quantizer, values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """(int8 numbers, fp32 scales), both flat.

    Args:
        values: fp32 or bf16, elements a multiple of the block.
    """
    blocks = values.reshape(-1, BLOCK).float()
    largest = blocks.abs().amax(1, keepdim=True)
    exponent = torch.frexp(largest).exponent.clamp(min=SMALLEST_EXPONENT)
    unit = torch.where(largest.isfinite(), torch.ldexp(torch.ones_like(largest), exponent), torch.nan)
    numbers, scales = quantizer.quantize((blocks / unit).half(), len(blocks), bits, quantizer.Symmetric)
    return numbers.reshape(-1), scales.reshape(-1) * unit.reshape(-1)


def dequantize(numbers: Tensor, scales: Tensor, bits: int) -> Tensor:
    """fp32, flat."""
    if bits == 4:
        numbers = torch.stack([numbers >> 4, (numbers << 4) >> 4], -1)
    return (numbers.reshape(-1, BLOCK) * scales.reshape(-1, 1)).reshape(-1)
