"""What a step multiplies in, as a rank records it."""

from unittest.mock import Mock

import torch
import torch.nn.functional as F

from trainer.measuring.operators import ProductTypes


def test_products_of_every_kind_are_counted_by_hand():
    rows, ends = torch.randn(6, 16), torch.tensor([4, 6], dtype=torch.int32)
    with ProductTypes() as seen:
        torch.ones(2, 3) @ torch.ones(3, 5)
        F.linear(torch.ones(2, 3).bfloat16(), torch.ones(5, 3).bfloat16(), torch.ones(5).bfloat16())
        F.grouped_mm(rows.double().float(), torch.randn(2, 16, 8), offs=ends)
        F.conv2d(torch.ones(1, 1, 4, 4).half(), torch.ones(2, 1, 3, 3).half())
        torch.ones(100) * torch.ones(100)  # no product of matrices
    convolution = 2 * (2 * 2) * 2 * 9
    assert seen.operations == {
        "float32": 2 * 2 * 3 * 5 + 2 * 6 * 16 * 8, "bfloat16": 2 * 2 * 3 * 5, "float16": convolution,
    }  # fmt: skip


def test_a_type_counts_from_a_twentieth_on():
    with ProductTypes() as seen:
        torch.ones(1, 94) @ torch.ones(94, 1)
        torch.ones(1, 6).double() @ torch.ones(6, 1).double()
        assert seen.dtypes() == ["float32", "float64"]
        torch.ones(1, 26) @ torch.ones(26, 1)
    assert (seen.dtypes(), ProductTypes().dtypes()) == (["float32"], [])


def test_attention_with_fewer_key_heads_does_not_end_a_run():
    """As torch calls the mode for a kernel of CUDA; torch 2.11 has no formula for fewer key heads and raised."""
    query, keys = torch.ones(1, 4, 8, 16).bfloat16(), torch.ones(1, 2, 8, 16).bfloat16()
    kernel = Mock(return_value=query, _overloadpacket=torch.ops.aten._scaled_dot_product_cudnn_attention)
    seen = ProductTypes()
    seen.__torch_dispatch__(kernel, (), (query, keys, keys, None, True), {})
    assert seen.operations == {"bfloat16": 2 * (2 * 4 * 8 * 8 * 16)}
    kernel.assert_called_once_with(query, keys, keys, None, True)
