"""Where this rank runs: among which processes, on which device of which machine."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from trainer.layout.node import read_node


@dataclass(frozen=True)
class World:
    """This process among all, as torch's launcher tells it."""

    rank: int
    local_rank: int
    size: int
    local_size: int
    device_type: str
    device: str
    device_name: str
    host: str
    node: str = ""
    """The machine below the pod; empty where nobody says."""

    @property
    def backend(self) -> str:
        return "nccl" if self.device_type == "cuda" else "gloo"

    @property
    def nodes(self) -> int:
        return self.size // self.local_size


def read_world(env: Mapping[str, str]) -> World:
    """The world from RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and the devices that are there."""
    local_rank = int(env["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available()
    device = f"cuda:{local_rank}" if on_gpu else "cpu"
    return World(
        rank=int(env["RANK"]),
        local_rank=local_rank,
        size=int(env["WORLD_SIZE"]),
        local_size=int(env["LOCAL_WORLD_SIZE"]),
        device_type="cuda" if on_gpu else "cpu",
        device=device,
        device_name=torch.cuda.get_device_name(device) if on_gpu else processor_name(),
        host=socket.gethostname(),
        node=read_node(env),
    )


def processor_name() -> str:
    """The processor's model and the number of cores this process may use."""
    model = platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores"
