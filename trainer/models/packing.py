"""Describe the documents of packed rows to the attention layers.

`build_packing` runs once per micro-batch, at the model's input; every layer receives its result unchanged.

    path    chosen for                                      builds                                   key heads
    varlen  CUDA, 16 bits, torch has varlen_attn            int32 start of each document             unchanged
    mask    everything else                                 [row, 1, query, key] of 0 and -inf       repeated

Both are exact. A mask has rows x tokens^2 numbers, and its kernel computes all of them. varlen does not compute pairs
of tokens from two documents. The host never waits for a device: the bounds come from the token cache.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stratlab_spec.models.decoder import FAMILIES, DecoderShape
from stratlab_spec.settings.config import Config

try:  # torch >= 2.10
    from torch.nn.attention import varlen
except ImportError:  # pragma: no cover
    varlen = None  # type: ignore[assignment]

CAUSAL, VARLEN, MASK = "causal", "varlen", "mask"
"""The attention paths; `causal` is for rows of one document and needs neither structure."""


@dataclass(frozen=True)
class Offer:
    """The hardware and software support for attention."""

    device_type: str
    capability: tuple[int, int]
    """Compute capability of the CUDA device; (0, 0) elsewhere."""
    varlen: bool
    """Whether torch has varlen_attn and the kernel that it calls."""


VARLEN_DTYPES = (torch.bfloat16, torch.float16)
VARLEN_CAPABILITY = (8, 0)
"""The lowest supported compute capability."""


def choose_path(offer: Offer, dtype: torch.dtype) -> str:
    """Return varlen or mask, for products in `dtype`."""
    fits = offer.varlen and offer.device_type == "cuda" and offer.capability >= VARLEN_CAPABILITY
    return VARLEN if fits and dtype in VARLEN_DTYPES else MASK


@functools.cache
def read_offer(device: torch.device) -> Offer:
    """Return the support that torch reports for a device."""
    if device.type != "cuda":
        return Offer(device.type, (0, 0), varlen is not None)
    flash = torch.backends.cuda.is_flash_attention_available()
    return Offer("cuda", torch.cuda.get_device_capability(device), varlen is not None and flash)


def describe_attention(config: Config, shape: DecoderShape, device: str, dtype: torch.dtype, cp: int) -> str:
    """Return the attention path of a run: causal, varlen or mask.

    Args:
        dtype: of products.
        cp: ranks that share a sequence; if they gather its keys, rows of one document need a path too.
    """
    family = FAMILIES.get(shape.family)
    if family and family.scores_kept:
        return MASK
    narrow = any(0 < window < config.seq_len for window in shape.windows)
    if not config.packing and not narrow and (cp == 1 or config.cp_method != "allgather"):
        return CAUSAL
    return choose_path(read_offer(torch.device(device)), dtype)


@dataclass(frozen=True)
class Bounds:
    """Limits for every row. If they are too low, results are wrong; if they are too high, steps take longer."""

    documents: int
    """Most documents in a row, counting its padding as one."""
    longest: int
    """Tokens of the longest document or padding."""


def _takes_grouped() -> bool:
    """Whether varlen_attn has the `enable_gqa` argument for fewer kv heads.

    torch 2.13 has it. torch 2.11 accepts fewer kv heads without it. It is not checked inside the layers, because they
    may be compiled.
    """
    return "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters


@dataclass(frozen=True)
class Spans:
    """Document boundaries of the path varlen, over all rows; missing documents have zero tokens."""

    of_queries: Tensor
    """int32 [document + 1]: this rank's queries before each document, over the concatenated rows."""
    of_keys: Tensor
    """int32 [document + 1]: the keys before each document."""
    longest: int
    """At least the tokens of the longest document."""
    grouped: bool = field(default_factory=_takes_grouped)
    """varlen_attn needs an argument for fewer kv heads."""


@dataclass(frozen=True)
class DocumentMask:
    """Mask of the path mask."""

    bias: Tensor
    """[row, 1, query, key] in the type of products: 0 for visible keys, else -inf.

    It holds numbers, because each attention call would otherwise convert a boolean mask and keep the result.
    """
    narrow: dict[int, Tensor] = field(default_factory=dict)
    """The same for layers with a sliding window, by its tokens."""

    def bias_of(self, window: int) -> Tensor:
        """Return the bias of layers whose queries see `window` tokens; 0, or as many as there are keys, = all."""
        return self.narrow[window] if 0 < window < self.bias.shape[-1] else self.bias


Packing = Spans | DocumentMask


def build_packing(
    documents: Tensor,
    part: tuple[int, int],
    dtype: torch.dtype,
    bounds: Bounds,
    windows: tuple[int, ...] = (),
    path: str = "",
) -> Packing:
    """Build the packing for all layers.

    Args:
        documents: int64 [row, token], the column at which each token's document begins; of the whole row.
        part: (i, n): this rank's queries are the i-th of n equal parts of the row, its keys all up to their end.
        dtype: of products.
        windows: sliding windows of the layers, in tokens.
        path: "" = the best one.
    """
    columns = documents.shape[1] // part[1]
    first, end = part[0] * columns, (part[0] + 1) * columns
    build = BUILDERS[path or choose_path(read_offer(documents.device), dtype)]
    return build(documents[:, :end], first, dtype, bounds, windows)


def build_spans(
    documents: Tensor, first: int, dtype: torch.dtype, bounds: Bounds, windows: tuple[int, ...] = ()
) -> Spans:
    """Build the spans for queries from column `first` and all keys.

    Documents that end before `first` only have keys.
    """
    rows, columns = documents.shape
    order = torch.arange(columns, device=documents.device)
    number = (documents == order).flatten().cumsum(0).view(rows, columns)  # documents, from 1
    size = rows * bounds.documents + 1
    of_queries, of_keys = (_count(some, size) for some in (number[:, first:], number))
    return Spans(of_queries, of_keys, min(bounds.longest, columns))


def _count(numbers: Tensor, size: int) -> Tensor:
    """Count the `numbers` that are at most 0, 1, ... size - 1: int32."""
    flat = numbers.flatten()
    counts = torch.zeros(size, dtype=torch.int32, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    return counts.cumsum(0, dtype=torch.int32)


def build_mask(
    documents: Tensor, first: int, dtype: torch.dtype, bounds: Bounds, windows: tuple[int, ...] = ()
) -> DocumentMask:
    """Build the mask for queries from column `first` and all keys."""
    order = torch.arange(documents.shape[1], device=documents.device)
    queries = order[first:, None]
    seen = (order <= queries) & (order >= documents[:, first:, None])
    bias = torch.full((), float("-inf"), dtype=dtype, device=documents.device)

    def as_bias(visible: Tensor) -> Tensor:
        return torch.where(visible, torch.zeros_like(bias), bias).unsqueeze(1)

    return DocumentMask(as_bias(seen), {w: as_bias(seen & (order > queries - w)) for w in windows})


BUILDERS: dict[str, Callable[..., Packing]] = {VARLEN: build_spans, MASK: build_mask}


def attend_spans(
    q: Tensor, k: Tensor, v: Tensor, spans: Spans, scaling: float | None, window: int = 0
) -> Tensor:
    """Attend causally inside documents with torch's varlen_attn.

    If a document has more keys than queries, the queries are its last tokens.

    Args:
        q: [row, head, query, dim].
        k, v: [row, kv head, key, dim].
        window: tokens that a query sees, itself included; 0 = all.

    Returns:
        [row, head, query, dim], tokens before heads in memory.
    """
    rows, heads, queries, dim = q.shape
    flat = (part.to(v.dtype).transpose(1, 2).flatten(0, 1) for part in (q, k, v))
    options: dict[str, Any] = {"scale": scaling, "window_size": (window - 1, 0)}
    longest = spans.longest
    if spans.grouped:
        options["enable_gqa"] = True
    found = varlen.varlen_attn(*flat, spans.of_queries, spans.of_keys, longest, longest, **options)
    return found.view(rows, queries, heads, dim).transpose(1, 2)


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    packing: Packing | None,
    dropout: float,
    scaling: float | None,
    window: int = 0,
) -> Tensor:
    """Attend from each token to itself and the earlier tokens of its document.

    Args:
        q: [row, head, query, dim].
        k, v: [row, kv head, key, dim]; each kv head serves heads / kv heads neighbouring heads.
        packing: the documents' positions, built once for all layers; None = a row is one document with all its queries.
        dropout: rate on the attention's weights; only for rows with one document.
        scaling: factor on q k^T; None = dim ** -0.5.
        window: tokens that a query sees, itself included; 0 = all.

    Returns:
        [row, head, query, dim].
    """
    if packing is None:
        assert not window or window >= q.shape[2], "a window needs the packing"
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=k.shape[1] != q.shape[1]
        )
    assert dropout == 0.0, "packed rows do not support dropout"
    if isinstance(packing, Spans):
        return attend_spans(q, k, v, packing, scaling, window)
    # repeat kv heads: with a mask and enable_gqa CUDA only has the kernel that stores all scores
    k, v = (repeat_heads(t, q.shape[1]) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=packing.bias_of(window), scale=scaling)


def repeat_heads(kv: Tensor, heads: int) -> Tensor:
    """[row, kv head, token, dim] -> [row, head, token, dim], each kv head heads / kv heads times in a row."""
    return kv if kv.shape[1] == heads else kv.repeat_interleave(heads // kv.shape[1], dim=1)
