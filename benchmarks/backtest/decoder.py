"""Shapes of decoders, their layouts on devices, and which layers a stage of a pipeline has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A Llama-shaped decoder. `tied`: the head is the embedding, where one rank has both."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool = False

    @property
    def kv(self) -> int:
        """Width of the keys, or of the values."""
        return self.hidden // self.heads * self.kv_heads

    @property
    def layer_weights(self) -> int:
        """Parameters of one layer, without the norms."""
        return 2 * self.hidden * (self.hidden + self.kv) + 3 * self.hidden * self.intermediate

    @property
    def head_weights(self) -> int:
        return self.vocabulary * self.hidden


@dataclass(frozen=True)
class Layout:
    """How a decoder lies on devices. `micro_batches`: of one step. `zero_stage`: 1 shares out the optimizer."""

    dp: int
    tp: int
    pp: int
    cp: int
    zero_stage: int
    micro_batches: int
    tokens_per_row: int

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def sharers(self) -> int:
        """Ranks that share out the optimizer."""
        return self.dp * self.cp if self.zero_stage else 1

    def in_flight(self, stage: int) -> int:
        """Micro-batches whose activations a stage holds at most under 1f1b."""
        return min(self.pp - stage, self.micro_batches)


def layers_of(shape: Shape, stages: int, how: str) -> list[int]:
    """Layers of each stage.

    "even": as many for each. "by cost": a stage is full when all weights up to here, the head's last, are more than
    its share, as nanotron's build_model has it; the embedding costs nothing.
    """
    if how == "even":
        assert shape.layers % stages == 0, f"{shape.layers} layers on {stages} stages"
        return [shape.layers // stages] * stages
    found, stage = [0] * stages, 0
    whole = shape.layers * shape.layer_weights + shape.head_weights
    for number in range(1, shape.layers + 1):
        found[stage] += 1
        if number * shape.layer_weights > whole * (stage + 1) / stages:
            stage += 1
    return found
