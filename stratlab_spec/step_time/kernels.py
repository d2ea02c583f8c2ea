"""Seconds of a kernel on a card.

A kernel is described by its kind, its FLOPs, the bytes that it reads and writes, and its launches. A card has a few
rates. Products and convolutions take the longer of arithmetic and memory traffic. All others take their traffic:

    share kinds   bytes / (share x copy bandwidth)                 they stream, so a wider memory makes them faster
    capped kinds  bytes / min(cap, 0.97 x copy bandwidth)          their arithmetic or access pattern limits them

The shares and caps are sums of kernels in traces of ViT-B, ViT-H and Qwen2.5-3B on one H200. A cap is an absolute rate,
because a share of the bandwidth was 9.5 % wrong on an H100. The caps of norms' backward passes and the share of fused
chains were set with step times of these models in view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

PRODUCT, PRODUCT_FP32 = "product", "fp32 product"
CONVOLUTION, FIRST_CONVOLUTION, DEPTHWISE = "convolution", "first convolution", "depthwise convolution"
ATTENTION, ATTENTION_BACKWARD = "attention", "attention backward"
PACKED_ATTENTION, PACKED_ATTENTION_BACKWARD = "packed attention", "packed attention backward"
ELEMENTWISE, COPY, FUSED_OPTIMIZER = "elementwise", "copy", "fused optimizer"
CONCATENATION, FOREACH = "concatenation", "foreach"
UP_CAST, BROADCAST, REDUCTION, SOFTMAX = "up-cast", "broadcast", "reduction", "softmax"
NORM, NORM_BACKWARD, BATCH_NORM, ACTIVATION = "norm", "norm backward", "batch norm", "activation"
FUSED = "fused"
"""A chain of others that a compiler has joined."""
EMBEDDING, POOLING, SCATTER = "embedding", "pooling", "scatter"

SHARES: Mapping[str, float] = {
    ELEMENTWISE: 1.0,
    COPY: 1.0,
    FUSED_OPTIMIZER: 0.83,
    CONCATENATION: 0.8,
    FOREACH: 0.8,
    FUSED: 0.65,
}
"""Kind -> share of the copy bandwidth."""
CAPS_TB_PER_S: Mapping[str, float] = {
    UP_CAST: 2.1,
    BROADCAST: 2.1,
    REDUCTION: 1.8,
    SOFTMAX: 2.1,
    NORM: 2.2,
    NORM_BACKWARD: 1.6,
    BATCH_NORM: 2.6,
    ACTIVATION: 3.2,
    EMBEDDING: 2.1,
    POOLING: 2.1,
    SCATTER: 1.7,
    DEPTHWISE: 0.35,
}
MOST_OF_COPY = 0.97
PRODUCT_TRAFFIC, CONVOLUTION_TRAFFIC = 0.6, 0.75
"""Of the copy bandwidth."""
CONVOLUTION_SHARE = 0.62
"""Of the rate of products."""
FIRST_CONVOLUTION_TFLOPS = 45.0
PACKED_BACKWARD_START_US = 25.0
SHORTEST_US = 1.0
"""Of a kernel that moves no bytes."""
OPTIMIZER_PASSES = 7 / 4
"""AdamW reads weight, gradient and two moments, and writes all but the gradient."""
BACKWARD_FLOPS = 2.5
"""FLOPs of attention's backward pass, in units of the forward pass: it computes the scores again."""


class Kernel(NamedTuple):
    """One operation on the device."""

    kind: str
    flops: float = 0.0
    bytes: float = 0.0
    launches: int = 1


@dataclass(frozen=True)
class Card:
    """A GPU."""

    name: str
    memory_gib: float
    peak_tflops: float
    """Dense, 16 bits, of the data sheet: the denominator of MFU."""
    product_tflops: float
    """That products of a training step reach: the rate with the least mean error on the 33 products of the stage
    `ceilings` (benchmarks/gpu/measured), which is 720 on both Hopper cards."""
    copy_tb_per_s: float
    """A copy's read and written bytes per second."""
    product_start_us: float = 3.0
    """Of a product, besides its arithmetic or traffic: waves of tiles that do not fill the card."""
    fp32_tflops: float = 48.0
    attention_tflops: float = 320.0
    packed_attention_tflops: float = 250.0
    packed_attention_backward_tflops: float = 200.0
    gap_us: float = 1.2
    """Between a kernel's end and the next one's begin."""
    one_queue: bool = False
    """A CPU: the call that issues a kernel runs it, and waits for its own collectives."""
    measured: bool = False
    """False = rates of the data sheet, times the shares that an H200 reaches of its own."""

    def bytes_per_s(self, kind: str) -> float:
        """Return the memory traffic that a kind of kernel reaches."""
        copy = self.copy_tb_per_s * 1e12
        if kind in CAPS_TB_PER_S:
            return min(CAPS_TB_PER_S[kind] * 1e12, MOST_OF_COPY * copy)
        return SHARES[kind] * copy


HOPPER_TFLOPS = 989
PRODUCT_SHARE, COPY_SHARE = 0.73, 0.885
"""Of the data sheet's numbers, that an H200 reaches."""


def from_data_sheet(name: str, memory_gib: float, peak_tflops: float, memory_tb_per_s: float) -> Card:
    """Return a card of which only the data sheet is known."""
    hopper = peak_tflops / HOPPER_TFLOPS
    return Card(
        name,
        memory_gib,
        peak_tflops,
        PRODUCT_SHARE * peak_tflops,
        COPY_SHARE * memory_tb_per_s,
        attention_tflops=hopper * Card.attention_tflops,
        packed_attention_tflops=hopper * Card.packed_attention_tflops,
        packed_attention_backward_tflops=hopper * Card.packed_attention_backward_tflops,
    )


CARDS = {
    card.name: card
    for card in (
        Card("h200", 139.8, 989, 720, 4.25, gap_us=1.13, measured=True),
        Card("h100", 79.2, 989, 720, 3.02, gap_us=1.22, measured=True),
        from_data_sheet("a100-80gb", 79.2, 312, 2.039),
        from_data_sheet("a100-40gb", 39.4, 312, 1.555),
        from_data_sheet("b200", 178.4, 2250, 7.7),
        from_data_sheet("l40s", 44.5, 362, 0.864),
        from_data_sheet("l4", 22.0, 121, 0.300),
        from_data_sheet("a10g", 22.1, 70, 0.600),
        from_data_sheet("rtx-4090", 23.5, 165, 1.008),
        from_data_sheet("rtx-3090", 23.6, 71, 0.936),
    )
}
"""By name. Data sheets: NVIDIA; usable memory as CUDA reports it."""


DEVICE_NAMES = {
    "NVIDIA H200": "h200",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA B200": "b200",
    "NVIDIA L40S": "l40s",
    "NVIDIA L4": "l4",
    "NVIDIA A10G": "a10g",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
}
"""As torch and NVML name a card. Whole names: an H100 of PCIe has other rates, a slice of an A100 the name of all."""


def find_card_of_device(device_name: str) -> Card | None:
    """Return the card of a device; None = its rates are not known."""
    return CARDS.get(DEVICE_NAMES.get(device_name.strip(), ""))


def kernel_seconds(kernel: Kernel, card: Card) -> float:
    """Return the seconds from the previous kernel's end to this one's."""
    kind, flops, traffic, launches = kernel
    if not launches:
        return 0.0
    copy = card.copy_tb_per_s * 1e12
    gaps = card.gap_us * launches
    if kind in (PRODUCT, PRODUCT_FP32):
        rate = card.product_tflops if kind == PRODUCT else card.fp32_tflops
        return (
            max(flops / rate / 1e12, traffic / PRODUCT_TRAFFIC / copy) + (card.product_start_us + gaps) / 1e6
        )
    if kind == CONVOLUTION:
        rate = CONVOLUTION_SHARE * card.product_tflops
        seconds = max(flops / rate / 1e12, traffic / CONVOLUTION_TRAFFIC / copy)
        return seconds + (2 * launches + gaps) / 1e6
    if kind == FIRST_CONVOLUTION:
        return (
            flops / min(FIRST_CONVOLUTION_TFLOPS, card.product_tflops) / 1e12
            + 4 * traffic / copy
            + gaps / 1e6
        )
    if kind in (ATTENTION, PACKED_ATTENTION):
        rate = card.attention_tflops if kind == ATTENTION else card.packed_attention_tflops
        return max(flops / rate / 1e12, traffic / PRODUCT_TRAFFIC / copy) + gaps / 1e6
    if kind == ATTENTION_BACKWARD:
        return flops / card.attention_tflops / 1e12 + traffic / card.bytes_per_s(SOFTMAX) + gaps / 1e6
    if kind == PACKED_ATTENTION_BACKWARD:
        return flops / card.packed_attention_backward_tflops / 1e12 + (PACKED_BACKWARD_START_US + gaps) / 1e6
    if kind == FUSED_OPTIMIZER:
        traffic *= OPTIMIZER_PASSES
    return traffic / card.bytes_per_s(kind) + (SHORTEST_US * launches + gaps) / 1e6
