"""A decoder's initial weights by name, one parameter at a time: the same on every stage, mesh and number of ranks."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

STANDARD_DEVIATION = 0.02
"""Of fresh matrices: initializer_range of Qwen2 and Qwen3-MoE."""


class Weights(Protocol):
    """Whole parameters by their names inside the Decoder. A tied head has none: it is the embedding."""

    @property
    def names(self) -> list[str]:
        """Of all parameters, in the order of the model."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Of one parameter, without reading it."""

    def tensor(self, name: str) -> Tensor:
        """One parameter, whole: fp32 on the CPU.

        Raises:
            DataMissing: it is not there or has another shape.
        """


class RandomWeights:
    """Matrices normal(0, 0.02), norms one, biases zero; LoRA's A as peft draws it (kaiming uniform), B zero.

    Each parameter has a generator of its own, seeded by the run's seed and the parameter's name, so that neither the
    order nor the ranks that ask matter.

    Args:
        shapes: by name.
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]], seed: int) -> None:
        self._shapes = shapes
        self._seed = seed

    @property
    def names(self) -> list[str]:
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def tensor(self, name: str) -> Tensor:
        size = self._shapes[name]
        if ".lora_B." in name or name.endswith(".bias"):
            return torch.zeros(size)
        if len(size) == 1:
            return torch.ones(size)
        # the base of an adapter is what it would be without one
        drawn_as = name.replace(".base_layer.", ".")
        digest = hashlib.sha256(f"{self._seed} {drawn_as}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        if ".lora_A." in name:
            bound = 1 / math.sqrt(size[1])  # kaiming_uniform_ with a = sqrt(5)
            return torch.empty(size).uniform_(-bound, bound, generator=generator)
        return torch.empty(size).normal_(0.0, STANDARD_DEVIATION, generator=generator)


@torch.no_grad()
def fill_weights(module: nn.Module, weights: Weights) -> None:
    """Copies every parameter's weights into a whole module, whose names are the Decoder's."""
    for name, parameter in module.named_parameters():
        parameter.copy_(weights.tensor(name))


def hash_weights_by_name(weights: Weights, names: Sequence[str], rank: int, world_size: int) -> str:
    """sha256 over all parameters, each hashed by one rank; equal on every rank, whatever their number; collective."""
    lines = [_line(name, weights.tensor(name)) for name in names[rank::world_size]]
    if world_size == 1:
        return _hash_lines(lines)
    gathered: list[Any] = [None] * world_size
    dist.all_gather_object(gathered, lines)
    return _hash_lines(line for part in gathered for line in part)


def hash_of_state(model: nn.Module) -> str:
    """The same string for a whole model in memory."""
    return _hash_lines(_line(name, parameter.detach()) for name, parameter in model.named_parameters())


def _line(name: str, tensor: Tensor) -> str:
    content = tensor.float().cpu().contiguous().view(-1).numpy()
    return f"{name} {tuple(tensor.shape)} {hashlib.sha256(content).hexdigest()}"


def _hash_lines(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
