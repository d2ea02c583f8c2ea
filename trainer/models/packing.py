"""What the layers know of the documents in packed rows: made once per micro-batch, where the model is entered, and
handed to every layer as it is.

    path    chosen where                                    what is made                             key heads
    varlen  CUDA, 16 bits, torch has varlen_attn            int32 per document: where it begins      as they are
    mask    anywhere else                                   [row, 1, query, key] of 0 and -inf       repeated

Both are exact. A mask has rows x tokens^2 numbers and its kernel computes all of them; varlen computes no pair of
tokens of two documents. Nothing in here waits for a device: what must be known beforehand are bounds, from the token
cache.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stratlab_spec.settings.config import Config

try:  # from torch 2.10 on
    from torch.nn.attention import varlen
except ImportError:  # pragma: no cover
    varlen = None  # type: ignore[assignment]

CAUSAL, VARLEN, MASK = "causal", "varlen", "mask"
"""The paths: rows of one document need nothing at all."""


@dataclass(frozen=True)
class Offer:
    """What there is to attend with."""

    device_type: str
    capability: tuple[int, int]
    """Of a CUDA device; (0, 0) elsewhere."""
    varlen: bool
    """torch has varlen_attn, and the kernel that it calls."""


VARLEN_DTYPES = (torch.bfloat16, torch.float16)
VARLEN_CAPABILITY = (8, 0)
"""The lowest."""


def choose_path(offer: Offer, dtype: torch.dtype) -> str:
    """varlen or mask, for products in `dtype`."""
    fits = offer.varlen and offer.device_type == "cuda" and offer.capability >= VARLEN_CAPABILITY
    return VARLEN if fits and dtype in VARLEN_DTYPES else MASK


@functools.cache
def read_offer(device: torch.device) -> Offer:
    """Of a device, as torch tells it."""
    if device.type != "cuda":
        return Offer(device.type, (0, 0), varlen is not None)
    flash = torch.backends.cuda.is_flash_attention_available()
    return Offer("cuda", torch.cuda.get_device_capability(device), varlen is not None and flash)


def describe_attention(config: Config, device: str, dtype: torch.dtype, cp: int) -> str:
    """The path of a run: causal, varlen or mask.

    Args:
        dtype: of products.
        cp: ranks that share a sequence; where they gather its keys, rows of one document need a path too.
    """
    if not config.packing and (cp == 1 or config.cp_method != "allgather"):
        return CAUSAL
    return choose_path(read_offer(torch.device(device)), dtype)


@dataclass(frozen=True)
class Bounds:
    """What holds for every row that a model may meet; too low ones give wrong results, too high ones cost time."""

    documents: int
    """The most that a row has, its padding being one."""
    longest: int
    """Tokens of the longest document or padding."""


def _takes_grouped() -> bool:
    """torch 2.13 does; 2.11 takes fewer kv heads as they are, and does not know the word. Not asked inside the layers,
    which may be compiled."""
    return "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters


@dataclass(frozen=True)
class Spans:
    """Of the path varlen. Documents are counted through all rows; those that are not there have no tokens."""

    of_queries: Tensor
    """int32 [document + 1]: how many of this rank's queries lie before each document, rows laid end to end."""
    of_keys: Tensor
    """The same of the keys."""
    longest: int
    """At least as many tokens as any document has."""
    grouped: bool = field(default_factory=_takes_grouped)
    """varlen_attn wants to be told of fewer kv heads."""


@dataclass(frozen=True)
class DocumentMask:
    """Of the path mask."""

    bias: Tensor
    """[row, 1, query, key] in the type of products: 0 where a query looks, else -inf. As numbers, because every call
    of the attention would make them from a mask of bits, and keep them."""


Packing = Spans | DocumentMask


def build_packing(documents: Tensor, part: tuple[int, int], dtype: torch.dtype, bounds: Bounds) -> Packing:
    """What every layer gets.

    Args:
        documents: int64 [row, token], the column at which each token's document begins; of the whole row.
        part: (i, n): this rank's queries are the i-th of n equal parts of the row, its keys all up to their end.
        dtype: of products.
    """
    columns = documents.shape[1] // part[1]
    first, end = part[0] * columns, (part[0] + 1) * columns
    build = BUILDERS[choose_path(read_offer(documents.device), dtype)]
    return build(documents[:, :end], first, dtype, bounds)


def build_spans(documents: Tensor, first: int, dtype: torch.dtype, bounds: Bounds) -> Spans:
    """Queries are the columns from `first` on, keys all; a document that ends before `first` has keys alone."""
    rows, columns = documents.shape
    order = torch.arange(columns, device=documents.device)
    number = (documents == order).flatten().cumsum(0).view(rows, columns)  # of each token's document, from 1
    size = rows * bounds.documents + 1
    of_queries, of_keys = (_count(some, size) for some in (number[:, first:], number))
    return Spans(of_queries, of_keys, min(bounds.longest, columns))


def _count(numbers: Tensor, size: int) -> Tensor:
    """How many `numbers` are at most 0, 1, ... size - 1: int32."""
    flat = numbers.flatten()
    counts = torch.zeros(size, dtype=torch.int32, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    return counts.cumsum(0, dtype=torch.int32)


def build_mask(documents: Tensor, first: int, dtype: torch.dtype, bounds: Bounds) -> DocumentMask:
    """Queries are the columns from `first` on, keys all."""
    order = torch.arange(documents.shape[1], device=documents.device)
    seen = (order <= order[first:, None]) & (order >= documents[:, first:, None])
    bias = torch.full((), float("-inf"), dtype=dtype, device=documents.device)
    return DocumentMask(torch.where(seen, torch.zeros_like(bias), bias).unsqueeze(1))


BUILDERS: dict[str, Callable[[Tensor, int, torch.dtype, Bounds], Packing]] = {
    VARLEN: build_spans,
    MASK: build_mask,
}


def attend_spans(q: Tensor, k: Tensor, v: Tensor, spans: Spans, scaling: float | None) -> Tensor:
    """Causal inside documents, by torch's varlen_attn; where a document has more keys than queries, the queries are
    its last tokens.

    Args:
        q: [row, head, query, dim].
        k, v: [row, kv head, key, dim].

    Returns:
        [row, head, query, dim], tokens before heads in memory.
    """
    rows, heads, queries, dim = q.shape
    flat = (part.to(v.dtype).transpose(1, 2).flatten(0, 1) for part in (q, k, v))
    options: dict[str, Any] = {"scale": scaling, "window_size": (-1, 0)}
    longest = spans.longest
    if spans.grouped:
        options["enable_gqa"] = True
    found = varlen.varlen_attn(*flat, spans.of_queries, spans.of_keys, longest, longest, **options)
    return found.view(rows, queries, heads, dim).transpose(1, 2)
