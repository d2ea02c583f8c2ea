"""Which tokens a query looks at in packed rows, and the two paths that compute it."""

import dataclasses
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
from tests.trainer.models.varlen_stand_in import on_varlen
from trainer.models import decoder as decoders
from trainer.models import packing
from trainer.models.packing import (
    MASK,
    VARLEN,
    Bounds,
    Offer,
    Spans,
    build_mask,
    build_packing,
    build_spans,
    causal_attention,
    choose_path,
)

GPU = Offer("cuda", (9, 0), varlen=True)
TOKENS = 12
DOCUMENTS = {
    "one": [[0] * 12, [0] * 12],
    "many": [[0, 1, 1, 3, 3, 3, 6, 6, 8, 9, 9, 9], [0, 0, 0, 0, 4, 5, 6, 7, 7, 7, 10, 10]],
    "padding": [[0] * 5 + [5] * 4 + [9] * 3, [0] * 11 + [11]],
}
BOUNDS = Bounds(documents=9, longest=TOKENS)


@pytest.mark.parametrize(
    ("offer", "dtype", "path"),
    [
        (GPU, torch.float16, VARLEN),
        (GPU, torch.float32, MASK),
        (dataclasses.replace(GPU, capability=(8, 0)), torch.bfloat16, VARLEN),
        (dataclasses.replace(GPU, capability=(7, 5)), torch.float16, MASK),
        (dataclasses.replace(GPU, varlen=False), torch.bfloat16, MASK),
        (Offer("cpu", (0, 0), varlen=True), torch.bfloat16, MASK),
    ],
)
def test_the_path_is_chosen_by_device_type_and_what_torch_has(offer, dtype, path):
    assert choose_path(offer, dtype) == path


def test_the_mask_of_a_part_is_that_part_of_the_mask():
    documents = torch.tensor([[0, 0, 2, 2], [0, 1, 1, 3]])
    whole = build_mask(documents, 0, torch.float32, BOUNDS).bias
    assert whole.shape == (2, 1, 4, 4) and whole.dtype is torch.float32
    seen = (whole == 0).int().tolist()
    assert seen[0] == [[[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]]
    assert seen[1] == [[[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]]
    assert whole[whole != 0].unique().tolist() == [float("-inf")]
    part = build_packing(documents, (1, 2), torch.bfloat16, BOUNDS)
    assert torch.equal(part.bias, whole[:, :, 2:].bfloat16())
    assert torch.equal(build_packing(documents, (0, 2), torch.float32, BOUNDS).bias, whole[:, :, :2, :2])


def test_spans_count_documents_through_all_rows_and_fill_up_with_empty_ones():
    documents = torch.tensor([[0, 0, 2, 2], [0, 1, 1, 1]])
    spans = build_spans(documents, 0, torch.bfloat16, Bounds(documents=3, longest=3))
    assert spans.of_keys.tolist() == spans.of_queries.tolist() == [0, 2, 4, 5, 8, 8, 8]
    assert spans.of_keys.dtype is torch.int32 and spans.longest == 3


def test_a_document_before_the_part_has_keys_and_no_queries():
    documents = torch.tensor([[0, 0, 2, 2, 2, 5], [0, 0, 0, 0, 0, 0]])
    spans = build_spans(documents[:, :5], 3, torch.bfloat16, Bounds(documents=3, longest=6))
    assert spans.of_keys.tolist() == [0, 2, 5, 10, 10, 10, 10]
    assert spans.of_queries.tolist() == [0, 0, 2, 4, 4, 4, 4]
    assert spans.longest == 5  # no more than there are keys


def compare(documents, part=(0, 1), kv_heads=2, scaling=None, spans=None, window=0):
    """Output and gradients of q, k, v by varlen, each as its largest difference from the mask's."""
    source = torch.Generator().manual_seed(5)
    queries, end = TOKENS // part[1], TOKENS // part[1] * (part[0] + 1)
    sizes = [(2, 4, queries, 8), (2, kv_heads, end, 8), (2, kv_heads, end, 8)]
    given = [torch.randn(size, generator=source) for size in sizes]
    upstream = torch.randn(sizes[0], generator=source)
    found = []
    for path in (MASK, VARLEN):
        parts = [tensor.clone().requires_grad_() for tensor in given]
        made = packing.BUILDERS[path](documents[:, :end], end - queries, torch.float32, BOUNDS, (window,))
        with on_varlen():
            out = causal_attention(
                *parts, spans(made) if spans and path == VARLEN else made, 0.0, scaling, window
            )
        out.backward(upstream)
        found.append([out.detach(), *(tensor.grad for tensor in parts)])
    return [float((a - b).abs().max()) for a, b in zip(*found, strict=True)]


@pytest.mark.parametrize(
    ("name", "kv_heads", "part", "scaling", "window"),
    [
        ("one", 1, (0, 1), None, 0),
        ("many", 2, (1, 2), 0.7, 0),
        ("padding", 4, (2, 4), None, 0),
        ("one", 2, (0, 1), None, 2),
        ("many", 2, (1, 2), None, 3),
    ],
)
def test_varlen_is_the_mask_forward_and_backward(name, kv_heads, part, scaling, window):
    assert max(compare(torch.tensor(DOCUMENTS[name]), part, kv_heads, scaling, window=window)) < 1e-5


def test_a_window_ends_at_the_query_and_inside_its_document():
    mask = build_mask(torch.tensor([[0, 0, 0, 0, 4]]), 0, torch.float32, BOUNDS, (2,))
    assert mask.bias_of(5) is mask.bias_of(9) is mask.bias  # windows that a row does not fill
    assert [(row == 0).nonzero().flatten().tolist() for row in mask.bias_of(2)[0, 0]] == [
        [0],
        [0, 1],
        [1, 2],
        [2, 3],
        [4],
    ]


LENGTHS = (5, 9, 7)


def step(model, bounds=None, **settings):
    """Loss and gradients of a packed row, and how often something was made of the documents."""
    made = []
    decoder = moved(build(model, packing=True, **settings))
    decoder.bounds = bounds or decoder.bounds
    whole = decoders.build_packing
    inputs, labels = row_of([document(length, length) for length in LENGTHS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoders, "build_packing", lambda *given: made.append(whole(*given)) or made[-1])
        loss = loss_of(decoder, inputs, labels, 18)
        loss.backward()
    return loss.detach(), {n: p.grad for n, p in decoder.named_parameters()}, made


@pytest.mark.parametrize(("model", "recomputed"), zip(FAMILIES, ("blocks", "none"), strict=True))
def test_a_model_on_varlen_is_that_on_the_mask(model, recomputed):
    settings = {"activation_checkpointing": recomputed}
    loss, gradients, masks = step(model, **settings)
    with on_varlen():
        again, theirs, spans = step(model, Bounds(documents=4, longest=9), **settings)
    assert len(masks) == len(spans) == 1 and isinstance(spans[0], Spans)  # for four layers, once
    torch.testing.assert_close(again, loss, rtol=1e-6, atol=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(theirs[name], gradient, rtol=1e-4, atol=1e-6)


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
