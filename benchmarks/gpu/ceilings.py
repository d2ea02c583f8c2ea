"""The card's ceilings at our shapes: GEMM, attention, copies, launches. They are the denominators of MFU."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.attention_paths import SHAPES, Shape, build_call
from benchmarks.gpu.measuring import measure_time
from benchmarks.gpu.session import Session

GEMMS = {  # tokens, out, in
    "qwen qkv o": (4096, 2048, 2048),
    "qwen kv": (4096, 256, 2048),
    "qwen up": (4096, 11008, 2048),
    "qwen down": (4096, 2048, 11008),
    "qwen head": (2048, 151936, 2048),
    "vit_base qkv o": (256 * 197, 768, 768),
    "vit_base up": (256 * 197, 3072, 768),
    "vit_base down": (256 * 197, 768, 3072),
    "vit_huge qkv o": (64 * 257, 1280, 1280),
    "vit_huge up": (64 * 257, 5120, 1280),
    "vit_huge down": (64 * 257, 1280, 5120),
}
BACKWARD = 3.5
"""Multiply-adds of attention forward and backward, in units of the forward pass."""


def run(session: Session) -> None:
    """Start with the GEMM that shows whether the card is healthy."""
    session.measure("gemm 8192", time_gemm, session, 128 if session.tiny else 8192)
    session.measure("copies", time_copies, session)
    session.measure("launches", time_launches, session)
    for name, sizes in GEMMS.items():
        fitted = tuple(max(8, size // 64) for size in sizes) if session.tiny else sizes
        session.measure(f"gemm {name}", time_linear, session, *fitted, needs_s=1)
    for name, shape in SHAPES.items():
        session.measure(f"attention {name}", time_attention, session, shape.fitted(session.tiny), needs_s=1)


def _draw(session: Session, *size: int) -> Tensor:
    return torch.randn(*size, device=session.device, dtype=torch.bfloat16)


def time_gemm(session: Session, size: int) -> dict[str, Any]:
    """Time a square GEMM in bf16."""
    a, b = _draw(session, size, size), _draw(session, size, size)
    found = measure_time(session, lambda: a @ b.T)
    return {**found, "tflops": 2 * size**3 / found["ms"] / 1e9}


def time_linear(session: Session, tokens: int, out: int, into: int) -> dict[str, Any]:
    """Time forward, gradient of the input and gradient of the weight of a linear layer."""
    x, w, dy = _draw(session, tokens, into), _draw(session, out, into), _draw(session, tokens, out)
    calls = {"forward": lambda: x @ w.T, "d_input": lambda: dy @ w, "d_weight": lambda: dy.T @ x}
    ms = {name: measure_time(session, call, for_ms=80)["ms"] for name, call in calls.items()}
    work = 2 * tokens * out * into / 1e9
    tflops = {name: work / time for name, time in ms.items()}
    return {"sizes": [tokens, out, into], "ms": ms, "tflops": tflops}


def time_attention(session: Session, shape: Shape) -> dict[str, Any]:
    """Time forward and backward; a causal mask halves the work."""
    found = measure_time(session, build_call(session.device, shape), for_ms=60)
    work = BACKWARD * 4 * shape.rows * shape.heads * shape.tokens**2 * shape.dim
    return {**found, "tflops": work * (1.0 if shape.mask == "full" else 0.5) / found["ms"] / 1e9}


def time_copies(session: Session) -> dict[str, Any]:
    """Time copies on the device, and between it and the host."""
    size = 2**22 if session.tiny else 2**31
    a = torch.randint(0, 255, (size,), dtype=torch.uint8, device=session.device)
    b = torch.empty_like(a)
    facts = {"device_gb_per_s": 2 * size / measure_time(session, lambda: b.copy_(a))["ms"] / 1e6}
    if session.is_cuda:
        host = torch.randint(0, 255, (2**28,), dtype=torch.uint8)
        pinned, there = host.pin_memory(), a[: 2**28]
        calls = {
            "h2d_pinned_gb_per_s": lambda: there.copy_(pinned, non_blocking=True),
            "h2d_pageable_gb_per_s": lambda: there.copy_(host),
            "d2h_pinned_gb_per_s": lambda: pinned.copy_(there, non_blocking=True),
        }
        facts |= {name: 2**28 / measure_time(session, call)["ms"] / 1e6 for name, call in calls.items()}
    return facts


def time_launches(session: Session) -> dict[str, Any]:
    """Return the host time of small operations, which bounds a step of small kernels; us per call."""
    calls = 200 if session.tiny else 2000
    x = torch.randn(64, 64, device=session.device)
    w = torch.randn(64, 64, device=session.device, requires_grad=True)
    layer = torch.nn.Linear(64, 64, device=session.device)

    def under_autocast() -> None:
        with torch.autocast(session.device, dtype=torch.bfloat16):
            layer(x)

    def both_ways() -> None:
        F.linear(x, w).sum().backward()
        w.grad = None

    kinds: dict[str, Callable[[], Any]] = {
        "add_": lambda: x.add_(0.0),
        "linear": lambda: F.linear(x, w),
        "linear, autocast": under_autocast,
        "linear, forward and backward": both_ways,
    }
    facts: dict[str, Any] = {name: _per_call(session, call, calls) for name, call in kinds.items()}
    if session.is_cuda:
        facts |= _time_graph(session, x)
    gc.collect()
    began = time.perf_counter()
    gc.collect()
    return {**facts, "gc_collect_ms": (time.perf_counter() - began) * 1e3}


def _per_call(session: Session, call: Callable[[], Any], calls: int) -> dict[str, float]:
    def wait() -> None:
        if session.is_cuda:
            torch.cuda.synchronize()

    call()
    wait()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    host = time.perf_counter() - began
    wait()
    return {"host_us": host / calls * 1e6, "whole_us": (time.perf_counter() - began) / calls * 1e6}


def _time_graph(session: Session, x: Tensor) -> dict[str, float]:
    """Return the same hundred kernels launched one by one, and as a CUDA graph; us per kernel."""

    def chain() -> None:
        for _ in range(100):
            x.add_(0.0)

    eager = measure_time(session, chain)["ms"] * 10
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        chain()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        chain()
    return {"kernel_eager_us": eager, "kernel_in_graph_us": measure_time(session, graph.replay)["ms"] * 10}
