from __future__ import annotations

import math

import pytest
import torch

from tests.trainer.models.small_decoder import (
    FAMILIES,
    build,
    document,
    gradients,
    largest_relative,
    loss_of,
    moved,
    row_of,
)
from trainer.models import decoder as attention
from trainer.models.decoder import causal_attention, documents_of
from trainer.models.packing import Bounds, build_packing

LENGTHS = (5, 9, 7)  # and three places of padding


def by_hand(q, k, v, documents):
    """Softmax over the allowed tokens, one at a time, in float64."""
    rows, heads, tokens, dim = q.shape
    out = torch.zeros_like(q, dtype=torch.float64)
    group = heads // k.shape[1]
    for r in range(rows):
        for h in range(heads):
            for i in range(tokens):
                seen = [j for j in range(i + 1) if documents is None or documents[r, j] == documents[r, i]]
                keys, values = k[r, h // group, seen].double(), v[r, h // group, seen].double()
                out[r, h, i] = (keys @ q[r, h, i].double() / math.sqrt(dim)).softmax(0) @ values
    return out


def pack(documents, dtype=torch.float32):
    return None if documents is None else build_packing(documents, (0, 1), dtype, Bounds(12, 12))


def random_heads(kv_heads=2, dtype=torch.float32):
    source = torch.Generator().manual_seed(3)
    sizes = [(2, 4, 12, 8), (2, kv_heads, 12, 8), (2, kv_heads, 12, 8)]
    return [torch.randn(size, generator=source).to(dtype) for size in sizes]


@pytest.mark.parametrize(("kv_heads", "packed"), [(1, True), (2, False), (4, True)])
def test_it_is_the_softmax_over_the_earlier_tokens_of_the_document(kv_heads, packed):
    q, k, v = random_heads(kv_heads)
    documents = torch.tensor([[0] * 5 + [5] * 7, [0] * 1 + [1] * 2 + [3] * 9]) if packed else None
    out = causal_attention(q, k, v, pack(documents), 0.0, None)
    assert (out - by_hand(q, k, v, documents)).abs().max() < 1e-6
    scaled = causal_attention(q, k, v, pack(documents), 0.0, 0.5)
    assert (scaled - by_hand(q * 0.5 * math.sqrt(8), k, v, documents)).abs().max() < 1e-6


def test_bf16_stays_bf16_and_close():
    q, k, v = random_heads(dtype=torch.bfloat16)
    documents = torch.tensor([[0] * 5 + [5] * 7] * 2)
    out = causal_attention(q, k, v, pack(documents, torch.bfloat16), 0.0, None)
    assert out.dtype == torch.bfloat16
    assert (out - by_hand(q, k, v, documents)).abs().max() < 0.02  # 8 bits of mantissa, values up to 3


def test_documents_are_where_positions_begin():
    inputs, _ = row_of([document(length, length) for length in LENGTHS])
    assert documents_of(inputs).tolist() == [[0] * 5 + [5] * 9 + [14] * 7 + [21] * 3]


def compare_packed(model: str) -> tuple[float, float, float]:
    """Largest differences of logits, loss and (relative) gradients: documents in one row and each in its own."""
    documents = [document(length, length) for length in LENGTHS]
    count = sum(len(tokens) - 1 for tokens in documents)
    packed, alone = (moved(build(model, packing=packing)) for packing in (True, False))
    inputs, labels = row_of(documents)
    logits = packed(inputs)
    loss = loss_of(packed, inputs, labels, count)
    loss.backward()
    column, summed, difference = 0, 0.0, 0.0
    for tokens in documents:
        own, own_labels = row_of([tokens], len(tokens))
        part = loss_of(alone, own, own_labels, count)
        part.backward()
        summed += float(part.detach())
        here = logits[0, column : column + len(tokens)]
        difference = max(difference, float((here - alone(own)[0]).detach().abs().max()))
        column += len(tokens)
    return (
        difference,
        abs(float(loss.detach()) - summed),
        largest_relative(gradients(packed), gradients(alone)),
    )


@pytest.mark.parametrize("model", FAMILIES)
def test_packed_documents_are_as_if_alone(model):
    logits, loss, gradient = compare_packed(model)
    assert logits < 1e-5 and loss < 1e-5 and gradient < 1e-5


def test_transformers_builds_no_mask():
    """Otherwise the attention would meet one, and assert."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    assert attention.NAME not in ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
    with pytest.raises(AssertionError):
        attention._from_transformers(None, None, None, None, torch.ones(1))
