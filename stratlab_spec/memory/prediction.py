"""What takes less memory than these settings and trains the same, the cheapest first.

How much a run will hold, for what, and whether its devices have that; said before its ranks start.

What each process of a layout holds of a decoder: parameters, gradients, optimizer state; closed, without torch.

    whole parameter ─▶ its stage ─▶ cut by tp (or by ep: experts) ─▶ cut by fully_shard, first dimension, as torch.chunk

Parameters, gradients and state are fp32 in every precision (bf16 casts what it gathers): 4 + 4 bytes per
trained parameter, and 8 for AdamW's two moments (arXiv 1910.02054, section 3.1, without the 16-bit copies).
Activations are not in here, nor are the buffers into which parameters are gathered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from stratlab_spec.layout.parallel_dims import Axes, Layout, count_stages
from stratlab_spec.memory.profiles import CUDA, OperationsFile, Peak, find_operations
from stratlab_spec.models.decoder import DecoderShape, split_layers, weight_shapes
from stratlab_spec.models.teacher import count_teacher_bytes
from stratlab_spec.registry import count_moments
from stratlab_spec.settings.config import Config
from stratlab_spec.strategies import STRATEGIES

Settings = dict[str, str | int]


def find_remedies(config: Config, world_size: int) -> list[Settings]:
    """Settings to change, each entry on top of those before it. The samples of a step stay what they are.

    In this order: fewer samples at once, activations computed again, a strategy that holds less, host memory.
    """
    found: list[Settings] = []
    micro = config.micro_batch_size
    if micro > 1:
        found.append({"micro_batch_size": micro // _smallest_factor(micro)})
    if config.activation_checkpointing != "blocks":
        found.append({"activation_checkpointing": "blocks"})
    strategy = str(config.strategy)
    row = STRATEGIES[strategy]
    if world_size > 1 and row.holds_less:
        strategy = row.holds_less
        found.append({"strategy": strategy})
    places = ("none", *STRATEGIES[strategy].offload)
    known = places.index(config.offload) if config.offload in places else 0
    found += [{"offload": place} for place in places[known + 1 :]]
    return found


def describe_remedies(remedies: list[Settings]) -> str:
    """As a user types them: `run.config.micro_batch_size=16, then run.config.activation_checkpointing=blocks`."""
    return ", then ".join(f"run.config.{name}={value}" for each in remedies for name, value in each.items())


def _smallest_factor(number: int) -> int:
    return next(factor for factor in range(2, number + 1) if number % factor == 0)


GIB = 1 << 30
RESERVED_PER_ALLOCATED = 1.04
CONTEXT_GIB = 1.3
COMMUNICATOR_GIB = 0.37
WORKSPACE_GIB = 64 / 1024
GATE = 0.85
"""As `stratlab predict` has them, with their sources (docs/predict.md)."""
FORECAST = "memory_forecast"
"""Its place in `resolved` of config.json."""
SMALLEST_GIB = 0.005
UPDATE = "optimizer"
"""A window of a count (trainer/memory_estimation/timeline.py)."""
STATE = ("parameters", "master copies", "gradients", "gradient buckets", "optimizer state", "teacher")
"""Causes that no micro-batch and no recomputation makes smaller."""
AXES_BESIDE_DATA = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")


@dataclass(frozen=True)
class Forecast:
    """Of the fullest rank. `at_most`: the file was counted with several micro-batches, the run has one."""

    file: OperationsFile
    peak: Peak
    update: Peak
    """While the optimizer updates: parameters, gradients and its state are all there."""
    host: Peak
    """What is kept in host memory, of each rank."""
    fixed_gib: float
    workspace_gib: float
    """Of cuBLAS, in the allocator's own count; none on a CPU."""
    at_most: bool

    @property
    def peak_gib(self) -> float:
        return self.peak.total / GIB

    @property
    def least_gib(self) -> float:
        """On the device, if the allocator took no byte more than it is asked for."""
        return self.peak_gib + self.fixed_gib

    @property
    def on_device_gib(self) -> float:
        """With what the allocator takes besides."""
        return RESERVED_PER_ALLOCATED * self.peak_gib + self.fixed_gib

    def as_dict(self) -> dict[str, Any]:
        """For config.json. Causes add up to the peak."""
        return {
            "operations_file": self.file.path.name,
            "key": self.file.key,
            "peak_gib": self.peak_gib,
            "workspace_gib": self.workspace_gib,
            "on_device_gib": self.on_device_gib,
            "at_most": self.at_most,
            "window": self.peak.window,
            "rank": self.peak.rank,
            "causes_gib": {name: size / GIB for name, size in self.peak.causes.items()},
            "update_gib": {name: size / GIB for name, size in self.update.causes.items()},
            "host_gib": {name: size / GIB for name, size in self.host.causes.items()},
        }

    def describe(self) -> str:
        """`74.10 GiB on the device, 70.35 of them the engine's: activations 30.12, ...`."""
        causes = sorted(self.peak.causes.items(), key=lambda cause: -cause[1])
        told = ", ".join(f"{name} {size / GIB:.2f}" for name, size in causes if size >= SMALLEST_GIB * GIB)
        kept = self.host.total / GIB
        beside = f"; at least {kept:.2f} GiB of each rank in host memory" if kept else ""
        most = "<= " if self.at_most else ""
        engine = f"{most}{self.peak_gib:.2f} of them the engine's"
        return f"{most}{self.on_device_gib:.2f} GiB on the device, {engine}: {told}{beside}"


def forecast_memory(
    config: Config, ranks: int, per_node: int, rules: str = CUDA, folders: Sequence[Path] = ()
) -> Forecast | None:
    """What a rank of this run will hold; None where it is not asked for, or no operations file answers.

    Args:
        per_node: ranks that share a node.
        rules: of which device; files that were counted by those of another one go last.
        folders: of further operations files, which go first.
    """
    if not config.memory_forecast or config.mode != "train":
        return None
    file = find_operations(config, ranks, per_node, rules, folders)
    if file is None:
        return None
    at_most = file.accumulates and file.micro_batches(config, ranks) == 1
    peak = file.peak(config, ranks)
    update = file.window(UPDATE, peak, config, ranks)
    host = file.host(peak, config, ranks)
    workspace_gib = WORKSPACE_GIB if rules == CUDA else 0.0
    return Forecast(file, peak, update, host, _fixed_gib(file, ranks), workspace_gib, at_most)


def advise(config: Config, ranks: int, file: OperationsFile, device_gib: float) -> str:
    """What to try next, as a user types it: the largest micro-batch that fits, or what holds less."""
    fixed, most = _fixed_gib(file, ranks), GATE * device_gib
    if fixed > most:
        return f"larger devices: {fixed:.2f} GiB of each are CUDA's context and communicators, whatever the settings"
    for rows in _divisors(config.micro_batch_size):
        less = config.model_copy(update={"micro_batch_size": rows})
        gib = RESERVED_PER_ALLOCATED * file.peak(less, ranks).total / GIB + fixed
        if gib <= most:
            return f"run.config.micro_batch_size={rows}, which needs {gib:.2f} GiB at the same global batch"
    smallest = file.peak(config.model_copy(update={"micro_batch_size": 1}), ranks).causes
    state = sum(smallest.get(cause, 0) for cause in STATE)
    useless = {"micro_batch_size"}
    if RESERVED_PER_ALLOCATED * state / GIB + fixed > most:  # fewer activations are not enough
        useless.add("activation_checkpointing")
    rest = [one for one in find_remedies(config, ranks) if not useless & one.keys()]
    return describe_remedies(rest[:1]) or "more or larger devices"


def _divisors(number: int) -> list[int]:
    """Smaller ones, the largest first."""
    return [rows for rows in range(number // 2, 0, -1) if number % rows == 0]


def _fixed_gib(file: OperationsFile, ranks: int) -> float:
    """CUDA's context, cuBLAS's workspaces, NCCL's buffers of each group of the rank."""
    axes = file.samples[0]["axes"]
    several = sum(axes.get(name, 1) > 1 for name in AXES_BESIDE_DATA)
    groups = 0 if ranks == 1 else 1 + (several if several > 1 else 0)
    return CONTEXT_GIB + WORKSPACE_GIB + COMMUNICATOR_GIB * groups


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
    """Of these, elements that get gradients."""
    computed_with: int
    """Elements of its stages after tp and ep: what it gathers, piece by piece or at once, when it computes."""
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    teacher_bytes: int = 0
    """Of the network that the model learns from, whole where the loss is computed."""

    @property
    def total_bytes(self) -> int:
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes + self.teacher_bytes


def _optimizer_bytes(config: Config) -> int:
    """Per trained parameter: its moments in fp32, counters of steps left out."""
    return 4 * count_moments(config)


def describe_ranks(config: Config, shape: DecoderShape, layout: Layout) -> list[RankMemory]:
    """Every process of the layout, in the order of ranks.

    Raises:
        ConfigError, DataMissing: a teacher whose shape is not to be had.
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
        parameter_bytes=4 * parameters,
        gradient_bytes=4 * trained,
        optimizer_bytes=_optimizer_bytes(config) * trained,
        teacher_bytes=teacher if axes.computes_loss(rank) else 0,
    )


def tensor_dimension(name: str) -> int | None:
    """The dimension of a parameter that tp cuts; None = every tp rank has it whole."""
    if name in (EMBEDDING, HEAD):
        return 0
    parts = name.split(".")
    if any(matrix in parts for matrix in BY_COLUMNS):
        return None if "lora_A" in parts else 0
    if any(matrix in parts for matrix in BY_ROWS):
        return None if "lora_B" in parts else 1
    return None


def _cut(size: tuple[int, ...], dimension: int | None, parts: int, index: int) -> tuple[int, ...]:
    """The size of one part, as torch.chunk makes them: the last ones may be smaller or empty."""
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
