"""Ways to compute attention at the shapes of our models, and fp32 attention by its formula to judge them.

Shapes: q [row, head, token, dim]; k and v [row, kv head, token, dim]; the result is shaped as q.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from trainer.models.packing import (
    Bounds,
    Packing,
    Spans,
    attend_spans,
    build_packing,
    causal_attention,
    repeat_heads,
)

if TYPE_CHECKING:
    from benchmarks.gpu.session import Session

Path = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    """One call: `mask` is full, causal, or bool (a causal mask given as a tensor, which switches flash off)."""

    rows: int
    heads: int
    kv_heads: int
    tokens: int
    dim: int
    mask: str

    def fitted(self, tiny: bool) -> Shape:
        """Return the shape with few tokens if only the code is to run."""
        tokens = min(self.tokens, 65) if tiny else self.tokens
        return Shape(self.rows, self.heads, self.kv_heads, tokens, self.dim, self.mask)


SHAPES = {
    "vit_base T197 hd64": Shape(8, 12, 12, 197, 64, "full"),
    "vit_huge T257 hd80": Shape(8, 16, 16, 257, 80, "full"),
    "qwen2.5-3b causal 16/2 T2048 hd128": Shape(1, 16, 2, 2048, 128, "causal"),
    "bool mask 16/16 T2048 hd128": Shape(1, 16, 16, 2048, 128, "bool"),
    "bool mask 16/2 T2048 hd128": Shape(1, 16, 2, 2048, 128, "bool"),
}
OURS = tuple(name for name, shape in SHAPES.items() if shape.mask != "bool")
"""Calls of our models; the others show the cost of packing."""


@dataclass(frozen=True)
class Documents:
    """A row packed with documents of different lengths.

    Attributes:
        starts: int64 [1, token], the first place of each token's document.
        bounds: int32 [document + 1], where each one begins, and the end.
    """

    starts: Tensor
    bounds: Tensor

    @property
    def count(self) -> int:
        return len(self.bounds) - 1

    @property
    def longest(self) -> int:
        return int(self.bounds.diff().max())


def draw_documents(tokens: int, length: int, device: str) -> Documents:
    """Return documents of about `length` tokens, always the same ones; a single one if `length` is the whole row."""
    generator = torch.Generator().manual_seed(tokens * 1000 + length)
    bounds = [0]
    while bounds[-1] < tokens:
        step = length * (0.5 + torch.rand((), generator=generator).item()) if length < tokens else tokens
        bounds.append(min(tokens, bounds[-1] + max(1, int(step))))
    sizes = torch.tensor(bounds).diff()
    starts = torch.repeat_interleave(torch.tensor(bounds[:-1]), sizes)[None]
    return Documents(starts.to(device), torch.tensor(bounds, dtype=torch.int32, device=device))


def draw_inputs(device: str, rows: int, heads: int, kv_heads: int, tokens: int, dim: int) -> list[Tensor]:
    """Return q, k, v in bf16, random: zeros would make the same kernels faster."""
    sizes = [(rows, n, tokens, dim) for n in (heads, kv_heads, kv_heads)]
    return [torch.randn(s, device=device, dtype=torch.bfloat16, requires_grad=True) for s in sizes]


def build_call(device: str, shape: Shape) -> Callable[[], Any]:
    """Return forward and backward of scaled_dot_product_attention at a shape."""
    q, k, v = draw_inputs(device, shape.rows, shape.heads, shape.kv_heads, shape.tokens, shape.dim)
    upstream = torch.randn_like(q)
    mask = None
    if shape.mask == "bool":
        mask = torch.ones(shape.tokens, shape.tokens, dtype=torch.bool, device=device).tril()[None, None]

    def call() -> Any:
        gqa, causal = shape.kv_heads != shape.heads, shape.mask == "causal"
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=gqa)
        return torch.autograd.grad(out, (q, k, v), upstream)

    return call


def build_project(documents: Documents, parts: int = 1) -> Path:
    """Return the attention that our models call, with its preparation made beforehand, as for all layers of a model.

    Args:
        parts: of the row, attended to separately, as by ranks that gather the keys of all.
    """
    packings = [_pack(documents, (part, parts)) for part in range(parts)]

    def path(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        columns, found = q.shape[2] // parts, []
        for part, packing in enumerate(packings):
            first, end = part * columns, (part + 1) * columns
            given = q[:, :, first:end], k[:, :, :end], v[:, :, :end]
            found.append(causal_attention(*given, packing, 0.0, None))
        return torch.cat(found, dim=2)

    return path


def _pack(documents: Documents, part: tuple[int, int]) -> Packing:
    bounds = Bounds(documents.count, documents.longest)
    return build_packing(documents.starts, part, torch.bfloat16, bounds)


def build_varlen(session: Session, documents: Documents, longest: int) -> Path:
    """Return torch's varlen_attn over the documents of one row; on a CPU, which lacks it, the same document by
    document.
    """

    def on_device(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend_spans(q, k, v, Spans(documents.bounds, documents.bounds, longest), None)

    def on_host(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        edges = documents.bounds.tolist()
        spans = [[t[:, :, a:b] for t in (q, k, v)] for a, b in itertools.pairwise(edges) if a < b]
        gqa = k.shape[1] != q.shape[1]
        parts = [F.scaled_dot_product_attention(*span, is_causal=True, enable_gqa=gqa) for span in spans]
        return torch.cat(parts, dim=2)

    return on_device if session.is_cuda else on_host


@cache
def _flex(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False) if compiled else flex_attention


def build_flex(session: Session, documents: Documents) -> Path:
    """Return flex_attention with a block mask of the documents, compiled on a GPU."""
    from torch.nn.attention.flex_attention import create_block_mask

    first = documents.starts[0]

    def sees(row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (first[i] == first[j])

    mask = create_block_mask(sees, None, None, len(first), len(first), device=session.device)

    def path(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        gqa = k.shape[1] != q.shape[1]
        out: Tensor = _flex(session.is_cuda)(q, k, v, block_mask=mask, enable_gqa=gqa)
        return out

    return path


def build_forced(backend: Any, **options: Any) -> Path:
    """Return one back end of scaled_dot_product_attention and no other; kv heads are repeated."""

    def path(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (repeat_heads(t, q.shape[1]) for t in (k, v))
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, **options)

    return path


def attend_exactly(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
    """Compute attention by the formula, in the type of the inputs; `allowed` bool [token, token], None = all see
    all.
    """
    k, v = (repeat_heads(t, q.shape[1]) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    return torch.softmax(scores, -1) @ v


def run_both_ways(path: Path, inputs: Sequence[Tensor], upstream: Tensor) -> list[Tensor]:
    """Return the output and the gradients of q, k and v."""
    for tensor in inputs:
        tensor.grad = None
    out = path(*inputs)
    out.backward(upstream.to(out.dtype))
    return [out.detach(), *(t.grad.detach() for t in inputs if t.grad is not None)]


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Return the norm of the difference over the norm of the expected value, in fp64."""
    found, wanted = found.double(), wanted.double()
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))
