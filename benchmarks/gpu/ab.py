"""One way against another to do the same: what to change first. Time and peak memory of each; no gates."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from benchmarks.gpu import attention_paths as paths
from benchmarks.gpu.ab_layers import compare_adamw, compare_blocks, compare_layouts, compare_norms
from benchmarks.gpu.losses import chunked_loss, draw_case, plain_loss
from benchmarks.gpu.measuring import Call, compare_ways
from benchmarks.gpu.session import Session
from trainer.models.decoder import causal_attention, repeat_heads
from trainer.models.packing import Bounds, build_mask

LENGTHS = (256, 257, 264)
CHUNKS = (2, 4, 8, 16)


def run(session: Session) -> None:
    """By value."""
    session.measure("attention T2048", compare_packing, session, 2048, needs_s=10)
    session.measure("loss", compare_losses, session, needs_s=8)
    session.measure("rms norm", compare_norms, session)
    session.measure("adamw", compare_adamw, session, needs_s=5)
    session.measure("sdpa T256 T257 T264", compare_lengths, session)
    session.measure("resnet50 layouts", compare_layouts, session, needs_s=15)
    session.measure("compile a ViT-H block", compare_blocks, session, "vit", needs_s=20)
    session.measure("compile a Qwen2.5-3B block", compare_blocks, session, "qwen", needs_s=20)
    if not session.tiny:
        session.measure("attention T8192", compare_packing, session, 8192, needs_s=10)


def compare_packing(session: Session, tokens: int) -> dict[str, Any]:
    """A packed row at the shape of Qwen2.5-3B, both ways: masks, varlen, flex, and no documents at all."""
    heads, kv_heads, dim = (4, 2, 16) if session.tiny else (16, 2, 128)
    tokens = 128 if session.tiny else tokens
    results = {}
    for length in (32, 128) if session.tiny else (112, 512, tokens):
        documents = paths.draw_documents(tokens, length, session.device)
        inputs = paths.draw_inputs(session.device, 1, heads, kv_heads, tokens, dim)
        ways = _packed_ways(
            session, documents, inputs, with_flex=tokens <= 4096
        )  # it compiles for each length
        name = f"documents of about {length}"
        results[name] = {"documents": documents.count, **compare_ways(session, ways)}
    return {"tokens": tokens, "ways": results}


def _packed_ways(
    session: Session, documents: paths.Documents, inputs: list[Tensor], *, with_flex: bool
) -> dict[str, Call]:
    upstream, tokens, heads = torch.randn_like(inputs[0]), inputs[0].shape[2], inputs[0].shape[1]
    bounds = Bounds(documents.count, documents.longest)
    additive = build_mask(documents.starts, 0, torch.bfloat16, bounds).bias
    allowed = additive == 0
    wide = torch.full((2 * documents.count + 65,), tokens, dtype=torch.int32, device=session.device)
    wide[: len(documents.bounds)] = documents.bounds
    empty_places = paths.Documents(documents.starts, wide)

    def dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        k, v = (repeat_heads(t, heads) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    ways: dict[str, paths.Path] = {
        "project": paths.build_project(documents),
        "bool mask made once": lambda q, k, v: dense(q, k, v, allowed),
        "float mask made once": lambda q, k, v: dense(q, k, v, additive),
        "causal, documents ignored": lambda q, k, v: causal_attention(q, k, v, None, 0.0, None),
        "varlen": paths.build_varlen(session, documents, documents.longest),
        "varlen, upper bound": paths.build_varlen(session, documents, tokens),
        "varlen, upper bound, empty places": paths.build_varlen(session, empty_places, tokens),
    }
    if with_flex:
        ways["flex"] = paths.build_flex(session, documents)
    return {name: lambda way=way: paths.run_both_ways(way, inputs, upstream) for name, way in ways.items()}  # type: ignore[misc]


def compare_losses(session: Session) -> dict[str, Any]:
    """Head and loss at the vocabulary of Qwen2.5."""
    sizes = (64, 16, 320) if session.tiny else (4096, 2048, 151936)
    states, weight, labels = draw_case(session.device, *sizes)

    def both_ways(way: Any) -> None:
        states.grad = weight.grad = None
        way(states, weight, labels).backward()

    ways: dict[str, Any] = {"plain": plain_loss}
    ways |= {f"{n} chunks": lambda *case, n=n: chunked_loss(*case, n) for n in CHUNKS}
    if hasattr(F, "linear_cross_entropy"):  # from torch 2.13 on
        ways["linear_cross_entropy"] = lambda s, w, y: F.linear_cross_entropy(s, w, y, reduction="sum")
    if session.is_cuda:
        ways["plain, compiled"] = torch.compile(plain_loss)
    calls = {name: lambda way=way: both_ways(way) for name, way in ways.items()}
    return {"tokens_hidden_classes": sizes, "ways": compare_ways(session, calls)}


def compare_lengths(session: Session) -> dict[str, Any]:
    """The length of ViT-H, 257, against 256 and 264, by back end, both ways."""
    rows, heads, dim = (2, 2, 16) if session.tiny else (64, 16, 80)
    back_ends: dict[str, paths.Path] = {
        "default": F.scaled_dot_product_attention,
        "cudnn": paths.build_forced(SDPBackend.CUDNN_ATTENTION),
        "flash": paths.build_forced(SDPBackend.FLASH_ATTENTION),
        "efficient": paths.build_forced(SDPBackend.EFFICIENT_ATTENTION),
    }
    results = {}
    for tokens in LENGTHS:
        inputs = paths.draw_inputs(session.device, rows, heads, heads, tokens, dim)
        upstream = torch.randn_like(inputs[0])
        calls = {
            name: lambda path=path, inputs=inputs, upstream=upstream: paths.run_both_ways(
                path, inputs, upstream
            )
            for name, path in back_ends.items()
        }
        results[f"T{tokens}"] = compare_ways(session, calls, memory=False, for_ms=60)
    return {"ways": results}
