"""Measure the rates of a machine, all ranks at once: products, copies, an all-reduce inside a node and between nodes.

    torchrun ... -m trainer.measuring.machine_rates FILE     rank 0 writes FILE: JSON, each rate as often as measured

`stratlab calibrate` starts it. On a GPU products are in bf16 and the backend is NCCL, on a CPU fp32 and gloo. Rates are
those of the slowest rank: a step waits for it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stratlab_spec.run_directory import write_whole
from trainer.distributed.world import processor_name

PRODUCTS = {"cpu": (512, 512, 512), "cuda": (16384, 8192, 2048)}
"""Device -> rows, columns and depth of a product, of which a step of the runs that are predicted has many."""
COPIED_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}
MESSAGES_BYTES = {"cpu": (1 << 20, 8 << 20), "cuda": (32 << 20, 256 << 20)}
"""The bandwidth is that of the difference: both have the same start."""
REPEATS, LEAST_S, MOST_CALLS = 7, 0.25, 200
"""Of a rate; the shortest one; calls in one."""


def main(target: Path) -> None:
    """Measure, and write the file on rank 0."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    local, of_node = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(list(range(first, first + of_node))) for first in range(0, ranks, of_node)]
    found: dict[str, Any] = {
        "product_tflops": _measure(device, *_multiply(device)),
        "copy_tb_per_s": _measure(device, *_copy(device)),
        "inside_gb_per_s": _measure_links(device, groups[rank // of_node]) if of_node > 1 else [],
        "between_gb_per_s": _measure_links(device, None) if ranks > of_node else [],
    }
    if rank == 0:
        facts = {
            "device": device,
            "hardware": processor_name() if device == "cpu" else torch.cuda.get_device_name(local),
            "memory_gib": _memory_gib(device, of_node),
            "ranks_of_node": of_node,
            "nodes": ranks // of_node,
        }
        write_whole(target, json.dumps({**facts, "rates": found}) + "\n")
    dist.destroy_process_group()


def _memory_gib(device: str, of_node: int) -> float:
    if device == "cuda":
        return float(torch.cuda.get_device_properties(0).total_memory / 2**30)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 / of_node


def _multiply(device: str) -> tuple[Callable[[], object], float]:
    rows, columns, depth = PRODUCTS[device]
    kind = torch.float32 if device == "cpu" else torch.bfloat16
    a, b = (torch.randn(*size, device=device, dtype=kind) for size in ((rows, depth), (depth, columns)))
    out = torch.empty(rows, columns, device=device, dtype=kind)
    return lambda: torch.mm(a, b, out=out), 2 * rows * columns * depth / 1e12


def _copy(device: str) -> tuple[Callable[[], object], float]:
    source = torch.randn(COPIED_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source), 2 * COPIED_BYTES[device] / 1e12


def _measure_links(device: str, group: Any) -> list[float]:
    """Return the GB that each rank sends per second."""
    ranks = dist.get_world_size(group)
    small, large = (torch.zeros(size // 4, device=device) for size in MESSAGES_BYTES[device])
    few, many = (
        _measure(device, partial(dist.all_reduce, sent, group=group), 1.0) for sent in (small, large)
    )
    sent = 2 * (ranks - 1) / ranks * 4 * (large.numel() - small.numel()) / 1e9
    times = ((1 / one, 1 / other) for one, other in zip(few, many, strict=True))
    return [sent / (many_s - few_s) for few_s, many_s in times if many_s > few_s]


def _measure(device: str, call: Callable[[], object], amount: float) -> list[float]:
    """Return amounts per second; the same on all ranks, and each that of the slowest one."""
    _time(device, call, 1)
    calls = _slowest(LEAST_S / max(_time(device, call, 2) / 2, 1e-6))
    calls = max(1, min(MOST_CALLS, round(calls)))
    return [amount * calls / _slowest(_time(device, call, calls)) for _ in range(REPEATS)]


def _time(device: str, call: Callable[[], object], calls: int) -> float:
    dist.barrier()
    _finish(device)
    began = time.perf_counter()
    for _ in range(calls):
        call()
    _finish(device)
    return time.perf_counter() - began


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _slowest(value: float) -> float:
    largest = torch.tensor(value, device="cuda" if torch.cuda.is_available() else "cpu")
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return float(largest)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
