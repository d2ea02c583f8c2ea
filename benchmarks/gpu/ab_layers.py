"""Norms, optimizers, memory layouts and compiled blocks, one way against another."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu.attention_paths import draw_documents, relative_error
from benchmarks.gpu.measuring import compare_ways, free_memory
from benchmarks.gpu.session import Session

ADAMW_BYTES = 28
"""Per parameter in fp32: weight, gradient and two moments in; weight and two moments out."""


def compare_norms(session: Session) -> dict[str, Any]:
    """RMSNorm of transformers against torch's fused one, both ways."""
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
    """torch.optim.AdamW by a loop, by foreach and fused, on the tensors of a decoder."""
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


def compare_layouts(session: Session) -> dict[str, Any]:
    """ResNet-50 with both memory layouts, and with cuDNN's search for kernels."""
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
    """One block as the project runs it, fp32 weights under autocast, eager and compiled."""
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

    from stratlab_spec.models.decoder import SHAPES
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
    return (
        model.layers[0],
        x,
        {"position_embeddings": rotation, "position_ids": positions, "documents": starts},
    )
