"""How fast an all-reduce is, from small to large messages; collective over the default group, which is of the hosts."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

MIB = 2**20
HOST_SIZES = (MIB // 16, MIB, 16 * MIB)
DEVICE_SIZES = (MIB, 16 * MIB, 256 * MIB)
REPEATS = 5
LONGEST_S = 4.0
"""For one all-reduce: a larger message that would take longer is left out."""


def bus_gb_per_s(size: int, ranks: int, seconds: float) -> float:
    """What each rank sends and receives, in GB/s: 2 (n - 1) / n of the message, as nccl-tests count it."""
    return 2 * (ranks - 1) / ranks * size / seconds / 1e9


def prove_sum(device: str, group: Any) -> None:
    """One all-reduce whose result is known.

    Raises:
        RuntimeError: it is another one.
    """
    one = torch.ones(1000, device=device)
    dist.all_reduce(one, group=group)
    size = dist.get_world_size(group)
    if not bool((one == size).all()):
        raise RuntimeError(f"an all-reduce of ones over {size} ranks gave {float(one[0])}")


def measure_all_reduce(device: str, group: Any) -> list[dict[str, float]]:
    """Of each size `mib`, the milliseconds of the best of REPEATS on the slowest rank, and the bus bandwidth."""
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return []
    found: list[dict[str, float]] = []
    for size in HOST_SIZES if device == "cpu" else DEVICE_SIZES:
        if found and found[-1]["ms"] * size / (found[-1]["mib"] * MIB) > LONGEST_S * 1e3:
            break
        message = torch.zeros(size // 4, device=device)
        best = min(_time(message, group) for _ in range(REPEATS + 1))
        slowest = torch.tensor(best, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)  # of all groups: all go on to the same size
        seconds = float(slowest)
        found.append({"mib": size / MIB, "ms": seconds * 1e3, "gb_per_s": bus_gb_per_s(size, ranks, seconds)})
    return found


def _time(message: torch.Tensor, group: Any) -> float:
    _finish(message)
    began = time.monotonic()
    dist.all_reduce(message, group=group)
    _finish(message)
    return time.monotonic() - began


def _finish(message: torch.Tensor) -> None:
    if message.is_cuda:
        torch.cuda.synchronize()
