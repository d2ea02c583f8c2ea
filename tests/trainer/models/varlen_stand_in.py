"""A stand-in for torch's varlen_attn, which runs on GPUs alone: the same arguments, one document at a time, any type.

It is as strict as the kernel is: what lies beyond the longest document that it was told of is not computed, and what no
document holds stays NaN.
"""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import varlen

from trainer.models import packing

IS_TOLD = "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters
"""Of fewer key heads than queries'; torch 2.11 takes them without a word."""


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Tensor:
    """As torch 2.13 has it, as far as training goes; query [token, head, dim], key and value [token, kv head, dim]."""
    assert return_aux is None and window_size[1] == 0, "causal, and the output alone"
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32 and len(cu_seq_q) == len(cu_seq_k)
    assert query.dtype == key.dtype == value.dtype
    heads, kv_heads, dim = query.shape[1], key.shape[1], query.shape[2]
    assert enable_gqa or heads == kv_heads or not IS_TOLD, "torch refuses fewer key heads without being told"
    key, value = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (key, value))
    pieces, column = [], 0
    spans = zip(*(bounds.unfold(0, 2, 1).tolist() for bounds in (cu_seq_q, cu_seq_k)), strict=True)
    for (first, end), (first_key, end_key) in spans:
        assert first == column and end_key >= first_key, "bounds only grow"
        keys = slice(first_key, min(end_key, first_key + max_k))
        known = min(end, first + max_q)
        q, k, v = (
            part.transpose(0, 1) for part in (query[first:known], key[keys], value[keys])
        )  # [head, token, dim]
        later = (end_key - first_key) - (end - first)  # the last query is as far as the last key
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(later)
        if window_size[0] >= 0:
            seen = seen.triu(later - window_size[0])
        scores = q @ k.transpose(1, 2) * (dim**-0.5 if scale is None else scale)
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        rest = torch.full((end - known, heads, dim), float("nan"), dtype=query.dtype)
        pieces += [(weights @ v).transpose(0, 1), rest]
        column = end
    pieces.append(torch.full((len(query) - column, heads, dim), float("nan"), dtype=query.dtype))
    return torch.cat(pieces)


@contextmanager
def on_varlen() -> Iterator[None]:
    """While it is entered packed rows go the way they go on a GPU, in fp32 too, by the stand-in."""
    offer = packing.Offer("cuda", (9, 0), varlen=True)
    with ExitStack() as stack:
        for owner, name, value in (
            (packing, "read_offer", lambda device: offer),
            (packing, "VARLEN_DTYPES", (torch.float32, torch.bfloat16)),
            (varlen, "varlen_attn", varlen_attn),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield
