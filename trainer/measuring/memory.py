"""The largest memory that this process has taken so far, of the host and of its device."""

from __future__ import annotations

import resource

import torch

from trainer.layout.world import World

GIB = 2**30


def peak_host_memory_gib() -> float:
    """Largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def peak_reserved_memory_gib(world: World) -> float | None:
    """Largest memory that torch's allocator had taken from the device so far; None on CPU."""
    return torch.cuda.max_memory_reserved(world.device) / GIB if world.device_type == "cuda" else None


def peak_device_memory_gib(world: World) -> float | None:
    """Largest memory that torch had allocated on the device so far; None on CPU."""
    return torch.cuda.max_memory_allocated(world.device) / GIB if world.device_type == "cuda" else None
