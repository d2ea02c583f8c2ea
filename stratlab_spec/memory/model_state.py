"""Compute each process's parameters, gradients and optimizer state of a decoder in closed form, without torch.

    whole parameter ─▶ its stage ─▶ cut by tp (or by ep: experts) ─▶ cut by fully_shard, first dimension, as torch.chunk

Parameters, gradients and state are fp32 in every precision (bf16 casts gathered parameters): 4 + 4 bytes per trained
parameter, and 8 for AdamW's two moments (arXiv 1910.02054, section 3.1, without the 16-bit copies). Activations are
not included, nor are the buffers into which parameters are gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from stratlab_spec.layout.axes import Axes
from stratlab_spec.layout.nd_layout import Layout, count_stages
from stratlab_spec.models.decoder import DecoderShape, split_layers, weight_shapes
from stratlab_spec.models.teacher import count_teacher_bytes
from stratlab_spec.registry import count_moments
from stratlab_spec.settings.config import Config

FP32 = 4
EMBEDDING, HEAD = "hf.model.embed_tokens.weight", "hf.lm_head.weight"
BY_COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
BY_ROWS = ("o_proj", "down_proj")


@dataclass(frozen=True)
class RankMemory:
    """One process, between two steps."""

    rank: int
    coordinates: dict[str, int]
    """On the axes of stratlab_spec.strategies.ND_AXES, and ep."""
    parameters: int
    """Elements that it holds."""
    trained: int
    """Elements among them that get gradients."""
    computed_with: int
    """Elements of its stages after tp and ep: gathered for computing, piece by piece or at once."""
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    teacher_bytes: int = 0
    """The network that the model learns from, whole if the loss is computed here."""

    @property
    def total_bytes(self) -> int:
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes + self.teacher_bytes


def describe_ranks(config: Config, shape: DecoderShape, layout: Layout) -> list[RankMemory]:
    """Return every process of the layout, in the order of ranks.

    Raises:
        ConfigError, DataMissing: a teacher whose shape is not available.
    """
    whole = weight_shapes(shape, config)
    stages = count_stages(config, layout.axes.pp)
    by_stage = [dict(_stage_shapes(whole, shape, stage, stages)) for stage in range(stages)]
    teacher = count_teacher_bytes(config)
    return [_describe(config, layout.axes, rank, by_stage, teacher) for rank in range(layout.axes.world_size)]


def _describe(
    config: Config, axes: Axes, rank: int, by_stage: list[dict[str, tuple[int, ...]]], teacher: int
) -> RankMemory:
    at = axes.coordinates(rank)
    among_experts = (at["dp_shard"] * axes.cp + at["cp"]) * axes.tp + at["tp"]
    at["ep"] = among_experts % axes.ep
    parameters = trained = computed_with = 0
    for sizes in by_stage[at["pp"] :: axes.pp]:
        for name, size in sizes.items():
            if ".mlp.experts." in name:
                kept = _cut(size, 0, axes.ep, at["ep"])
                shard, shards = among_experts // axes.ep, axes.dp_shard * axes.cp * axes.tp // axes.ep
            else:
                kept = _cut(size, tensor_dimension(name), axes.tp, at["tp"])
                shard, shards = at["dp_shard"] * axes.cp + at["cp"], axes.dp_shard * axes.cp
            held = prod(_cut(kept, 0, shards, shard))
            parameters += held
            trained += held if not config.lora_rank or ".lora_" in name else 0
            computed_with += prod(kept)
    return RankMemory(
        rank=rank,
        coordinates=at,
        parameters=parameters,
        trained=trained,
        computed_with=computed_with,
        parameter_bytes=FP32 * parameters,
        gradient_bytes=FP32 * trained,
        optimizer_bytes=FP32 * count_moments(config) * trained,  # counters of steps left out
        teacher_bytes=teacher if axes.computes_loss(rank) else 0,
    )


def tensor_dimension(name: str) -> int | None:
    """Return the dimension of a parameter that tp cuts; None = every tp rank has it whole."""
    if name in (EMBEDDING, HEAD):
        return 0
    parts = name.split(".")
    if any(matrix in parts for matrix in BY_COLUMNS):
        return None if "lora_A" in parts else 0
    if any(matrix in parts for matrix in BY_ROWS):
        return None if "lora_B" in parts or name.endswith(".bias") else 1
    return None


def _cut(size: tuple[int, ...], dimension: int | None, parts: int, index: int) -> tuple[int, ...]:
    """Return the size of one part, as torch.chunk makes them: the last ones may be smaller or empty."""
    if dimension is None:
        return size
    length = size[dimension]
    each = -(-length // parts)
    left = max(0, min(each, length - index * each))
    return (*size[:dimension], left, *size[dimension + 1 :])


def _stage_shapes(
    whole: dict[str, tuple[int, ...]], shape: DecoderShape, stage: int, stages: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    mine = split_layers(shape.layers, stages)[stage]
    for name, size in whole.items():
        first, _, inside = name.partition("hf.model.layers.")
        if inside and not first:
            belongs = int(inside.partition(".")[0]) in mine
        else:
            belongs = stage == (0 if name == EMBEDDING else stages - 1)
        if belongs:
            yield name, size
    if shape.tied and stage == stages - 1 > 0:  # a copy of the embedding
        yield HEAD, whole[EMBEDDING]
