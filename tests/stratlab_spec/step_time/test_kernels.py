"""Seconds of kernels, with hand-worked numbers and measured ones of an H200."""

from __future__ import annotations

import pytest

from stratlab_spec.step_time.kernels import (
    CARDS,
    CONVOLUTION,
    COPY,
    ELEMENTWISE,
    NORM,
    PRODUCT,
    UP_CAST,
    Kernel,
    from_data_sheet,
    kernel_seconds,
)

H200, H100 = CARDS["h200"], CARDS["h100"]


@pytest.mark.parametrize(
    ("kernel", "us"),
    [
        (Kernel(PRODUCT, flops=720e9, bytes=0), 1000 + 3 + 1.13),
        (Kernel(PRODUCT, flops=0, bytes=2.55e9), 1000 + 3 + 1.13),  # 0.6 x 4.25 TB/s
        (Kernel(COPY, bytes=4.25e9), 1000 + 1 + 1.13),
        (Kernel(UP_CAST, bytes=2.1e9), 1000 + 1 + 1.13),
        (Kernel(CONVOLUTION, flops=0.62 * 720e9), 1000 + 2 + 1.13),
        (Kernel(ELEMENTWISE, launches=0), 0),
        (Kernel(ELEMENTWISE, launches=3), 3 * 2.13),
    ],
)
def test_a_kernel_takes_the_longer_of_arithmetic_and_traffic(kernel: Kernel, us: float) -> None:
    assert kernel_seconds(kernel, H200) * 1e6 == pytest.approx(us)


def test_a_cap_holds_where_memory_is_slower() -> None:
    """2.2 TB/s of a norm on both; a card of 1 TB/s has no more than 0.97 of that."""
    norm = Kernel(NORM, bytes=2.2e9)
    assert kernel_seconds(norm, H200) == pytest.approx(kernel_seconds(norm, H100), rel=1e-3)
    slow = from_data_sheet("slow", 24, 100, 1.0)
    assert kernel_seconds(norm, slow) == pytest.approx(2.2e9 / (0.97 * 0.885e12), rel=0.01)


@pytest.mark.parametrize(
    ("tokens", "out", "into", "ms"),
    [
        (4096, 2048, 2048, 0.0476),
        (4096, 11008, 2048, 0.2438),
        (2048, 151936, 2048, 1.813),
        (50432, 3072, 768, 0.3282),
        (16448, 1280, 5120, 0.2684),
    ],
)
def test_products_of_an_h200(tokens: int, out: int, into: int, ms: float) -> None:
    """benchmarks/gpu/measured/h200-2026-11-26.jsonl, stage `ceilings`, forward: within 15 %."""
    traffic = 2 * (tokens * into + out * into + tokens * out)
    product = Kernel(PRODUCT, 2.0 * tokens * out * into, traffic)
    assert kernel_seconds(product, H200) * 1e3 == pytest.approx(ms, rel=0.15)
