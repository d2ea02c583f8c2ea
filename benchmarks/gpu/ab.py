"""One way against another to do the same: what to change first. Time and peak memory of each; no gates."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

from benchmarks.gpu import attention_paths as paths
from benchmarks.gpu.attention_paths import draw_documents, relative_error
from benchmarks.gpu.measuring import Call, compare_ways, free_memory
from benchmarks.gpu.numerics import chunked_loss, draw_case, plain_loss
from benchmarks.gpu.session import Session
from trainer.models.packing import Bounds, build_mask, causal_attention, repeat_heads

LENGTHS = (256, 257, 264)
CHUNKS = (2, 4, 8, 16)
ADAMW_BYTES = 28
"""Per parameter in fp32: weight, gradient and two moments in; weight and two moments out."""


def run(session: Session) -> None:
    """Measure by value."""
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
    """Return a packed row at the shape of Qwen2.5-3B, both ways: masks, varlen, flex, and no documents at all."""
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
    """Return head and loss at the vocabulary of Qwen2.5."""
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


def compare_norms(session: Session) -> dict[str, Any]:
    """Compare RMSNorm of transformers with torch's fused one, forward and backward."""
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

    rows, width = (64, 64) if session.tiny else (8192, 2048)
    module = Qwen2RMSNorm(width).to(session.device)
    results: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(rows, width, device=session.device, dtype=dtype, requires_grad=True)
        weight = module.weight.detach().to(dtype).requires_grad_()
        upstream = torch.randn_like(x)

        def both_ways(call: Callable[[Tensor], Tensor], x: Tensor = x, upstream: Tensor = upstream) -> None:
            x.grad = module.weight.grad = None
            out = call(x)
            out.backward(upstream.to(out.dtype))

        def fused(x: Tensor, weight: Tensor = weight) -> Tensor:
            return F.rms_norm(x, (width,), weight, 1e-6)

        calls = {"transformers": module, "F.rms_norm": fused}
        if session.is_cuda:
            calls["transformers, compiled"] = torch.compile(module)
        ways = {name: lambda call=call, run=both_ways: run(call) for name, call in calls.items()}
        results[str(dtype)] = compare_ways(session, ways)
        results[str(dtype)]["difference"] = relative_error(fused(x), module(x))
        results[str(dtype)]["least_bytes"] = 5 * rows * width * x.element_size()  # x, y; x, dy, dx
    return {"rows_width": [rows, width], "ways": results}


def compare_adamw(session: Session) -> dict[str, Any]:
    """Compare torch.optim.AdamW by a loop, by foreach and fused, on the tensors of a decoder."""
    layers, width = (2, 32) if session.tiny else (24, 896)
    sizes = [(4 * width, width), (width, 4 * width), *[(width, width)] * 4, (width,), (width,)] * layers
    parameters = [torch.randn(size, device=session.device, requires_grad=True) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    count = sum(parameter.numel() for parameter in parameters)
    results: dict[str, Any] = {}
    ways: dict[str, dict[str, bool]] = {"loop": {"foreach": False}, "foreach": {"foreach": True}}
    for name, how in (ways | {"fused": {"fused": True}}).items():
        optimizer = torch.optim.AdamW(parameters, 1e-4, **how)
        results |= compare_ways(session, {name: optimizer.step}, for_ms=60)
        if isinstance(results[name], dict):
            results[name]["gb_per_s"] = ADAMW_BYTES * count / results[name]["ms"] / 1e6
        del optimizer
        free_memory(session.is_cuda)
    return {"parameters": count, "tensors": len(sizes), "ways": results}


def compare_lengths(session: Session) -> dict[str, Any]:
    """Return the length of ViT-H, 257, against 256 and 264, by back end, both ways."""
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


def compare_layouts(session: Session) -> dict[str, Any]:
    """Compare ResNet-50 with both memory layouts, and with cuDNN's search for kernels."""
    import torchvision

    batch, size = (2, 32) if session.tiny else (256, 224)
    labels = torch.randint(0, 10, (batch,), device=session.device)
    layouts = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    results: dict[str, Any] = {}
    for name, layout in layouts.items():
        for search in (False, True):
            torch.manual_seed(0)
            model: Any = torchvision.models.resnet50(num_classes=10).to(session.device, memory_format=layout)
            images = torch.randn(batch, 3, size, size, device=session.device).to(memory_format=layout)

            def step(model: Any = model, images: Tensor = images) -> None:
                model.zero_grad(set_to_none=True)
                with torch.autocast(session.device, dtype=torch.bfloat16, enabled=session.is_cuda):
                    logits = model(images)
                F.cross_entropy(logits.float(), labels).backward()

            way = f"{name}, search" if search else name
            with torch.backends.cudnn.flags(enabled=True, benchmark=search):
                results |= compare_ways(session, {way: step}, for_ms=600)
            if isinstance(results[way], dict):
                results[way]["images_per_s"] = batch / results[way]["ms"] * 1e3
            del model, images, step
            free_memory(session.is_cuda)
    return {"batch": batch, "ways": results}


def compare_blocks(session: Session, kind: str) -> dict[str, Any]:
    """Return one block as the project runs it, fp32 weights under autocast, eager and compiled."""
    block, x, more = (_build_vit_block if kind == "vit" else _build_decoder_block)(session)
    block.train()

    def both_ways(call: Any) -> None:
        x.grad = None
        block.zero_grad(set_to_none=True)
        with torch.autocast(session.device, dtype=torch.bfloat16, enabled=session.is_cuda):
            out = call(x, **more)
        (out[0] if isinstance(out, tuple) else out).sum().backward()

    found = compare_ways(session, {"eager": lambda: both_ways(block)})
    compiled = torch.compile(block, backend="inductor" if session.is_cuda else "eager")
    began = time.time()
    both_ways(compiled)
    compile_s = time.time() - began
    found |= compare_ways(session, {"compiled": lambda: both_ways(compiled)})
    return {"input": list(x.shape), "compile_s": compile_s, "ways": found}


def _build_vit_block(session: Session) -> tuple[nn.Module, Tensor, dict[str, Any]]:
    from transformers import ViTForImageClassification

    from stratlab_spec.models.model_specs import VIT
    from trainer.models.hugging_face import vit_config

    shape = VIT["vit_tiny" if session.tiny else "vit_huge"]
    config = vit_config(shape, shape.image, 3, 10)
    config.num_hidden_layers = 1
    model = ViTForImageClassification(config)
    blocks = next(module for module in model.modules() if isinstance(module, nn.ModuleList))
    tokens = (shape.image // shape.patch) ** 2 + 1
    rows = 2 if session.tiny else 64
    x = torch.randn(rows, tokens, shape.hidden, device=session.device, requires_grad=True)
    return blocks[0].to(session.device), x, {}


def _build_decoder_block(session: Session) -> tuple[nn.Module, Tensor, dict[str, Any]]:
    from transformers import Qwen2Model

    from stratlab_spec.models.decoder_config import SHAPES
    from trainer.models.decoder import describe

    shape = SHAPES["qwen_tiny" if session.tiny else "qwen2.5-3b"]
    config = describe(shape)
    config.num_hidden_layers, config.vocab_size = 1, 512
    model: Any = Qwen2Model(config).to(session.device)
    tokens = 64 if session.tiny else 2048
    x = torch.randn(1, tokens, shape.hidden, device=session.device, requires_grad=True)
    positions = torch.arange(tokens, device=session.device)[None]
    starts = draw_documents(tokens, tokens // 16, session.device).starts
    rotation = model.rotary_emb(x, positions)
    more = {"position_embeddings": rotation, "position_ids": positions, "documents": starts}
    return model.layers[0], x, more
