"""Operations as kernels: kinds, FLOPs, traffic, and chains that a compiler joins. Tensors on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stratlab_spec.step_time import kernels as kinds
from trainer.memory_estimation.operations import Operation, Work, describe, fuse


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


FP32 = torch.float32
QUERY = tensor(3, 2, 100, 32)


@pytest.mark.parametrize(
    ("name", "ins", "outs", "expected"),
    [
        (
            "mm",
            [tensor(5, 7), tensor(7, 11)],
            [tensor(5, 11)],
            Operation(kinds.PRODUCT, 1, (5, 7, 11), (70, 154, 110)),
        ),
        (
            "addmm",
            [tensor(11, dtype=FP32), tensor(5, 7, dtype=FP32), tensor(7, 11, dtype=FP32)],
            [tensor(5, 11, dtype=FP32)],
            Operation(kinds.PRODUCT_FP32, 1, (5, 7, 11), (140, 308, 220)),
        ),
        ("_to_copy", [tensor(4)], [tensor(4, dtype=FP32)], Operation(kinds.UP_CAST, 1, (), (8, 16))),
        ("_to_copy", [tensor(4, dtype=FP32)], [tensor(4)], Operation(kinds.COPY, 1, (), (16, 8))),
        (
            "mul",
            [tensor(2, 8, 4), tensor(4)],
            [tensor(2, 8, 4)],
            Operation(kinds.BROADCAST, 1, (), (128, 8, 128)),
        ),
        ("mul", [tensor(8), tensor(8)], [tensor(8)], Operation(kinds.ELEMENTWISE, 1, (), (16, 16, 16))),
        ("zeros", [], [tensor(8)], Operation(kinds.ELEMENTWISE, 1, (), (16,))),
        (
            "convolution",
            [tensor(2, 8, 16, 16), tensor(4, 8, 3, 3)],
            [tensor(2, 4, 16, 16)],
            Operation(kinds.CONVOLUTION, 1, (2048, 72, 1), (8192, 4096, 576)),
        ),
        (
            "convolution",
            [tensor(2, 8, 16, 16), tensor(8, 1, 3, 3)],
            [tensor(2, 8, 16, 16)],
            Operation(kinds.DEPTHWISE, 1, (4096, 9, 1), (8192, 8192, 144)),
        ),
        ("empty", [], [tensor(8)], None),
    ],
)
def test_operators_as_kernels(name: str, ins: Any, outs: Any, expected: Operation | None) -> None:
    assert describe(name, ins, outs) == expected


def test_views_have_no_kernel() -> None:
    assert describe("transpose", [tensor(2, 3)], [tensor(3, 2)], alias=True) is None


def test_attention_has_its_sizes_as_factors() -> None:
    name = "_scaled_dot_product_flash_attention"
    full = describe(name, [QUERY, QUERY, QUERY], [QUERY])
    causal = describe(name, [QUERY, QUERY, QUERY], [QUERY], causal=True)
    assert full is not None
    assert causal is not None
    assert full.factors == (6, 100, 100, 32, 1)
    assert causal.factors == (6, 100, 100, 32, 2)


def test_a_shard_is_copied_in_once() -> None:
    """The buffer of all ranks is the last tensor."""
    found = describe("all_gather_copy_in", [tensor(10), tensor(6), tensor(64)], [tensor(16), tensor(64)])
    assert found == Operation(kinds.CONCATENATION, 1, (), (20, 12, 20, 12))


def operation(kind: str) -> Operation:
    return Operation(kind, 1)


def test_a_compiler_joins_what_stands_between_two_products() -> None:
    """x (1) -> norm (2) -> cast (3) -> product (4) -> gelu (5), add x (6): two chains, and the middle values vanish."""
    work = Work(
        [
            operation(kind)
            for kind in (kinds.NORM, kinds.COPY, kinds.PRODUCT, kinds.ACTIVATION, kinds.ELEMENTWISE)
        ],
        touched=[
            ({1: 100}, {2: 100}),
            ({2: 100}, {3: 50}),
            ({3: 50}, {4: 50}),
            ({4: 50}, {5: 50}),
            ({5: 50, 1: 100}, {6: 100}),
        ],
    )
    first, product, second = fuse({"0": work}, "0")
    assert (first.kind, first.traffic) == (kinds.FUSED, (100, 50))
    assert product.kind == kinds.PRODUCT
    assert (second.kind, second.traffic) == (kinds.FUSED, (50, 100, 100))


def test_a_value_that_another_segment_reads_is_written() -> None:
    work = {
        "0": Work(
            [operation(kinds.NORM), operation(kinds.COPY)], touched=[({1: 8}, {2: 8}), ({2: 8}, {3: 4})]
        ),
        "0 backward": Work([operation(kinds.NORM_BACKWARD)], touched=[({2: 8, 9: 8}, {10: 8})]),
    }
    (chain,) = fuse(work, "0")
    assert chain.traffic == (8, 8, 4)
