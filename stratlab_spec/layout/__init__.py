"""The axes of the device mesh and their rules, and strategy nd's degrees: processes, model and dimensions -> Layout.

rank = (((pp x dp_replicates + dp_replicate) x dp_shards + dp_shard) x cps + cp) x tps + tp

    dimensions   promises             8 processes         16 processes, 5 with experts
    1            data                 dp8x1               dp16x1
    2            + pipeline           pp2.dp4             pp2.dp8
    3            + tensor             pp2.dp2.tp2         pp2.dp4.tp2
    4            + sequence           pp2.dp2.tp2+sp      pp2.dp2.cp2.tp2+sp
    5            + expert             pp2.dp2.tp2+sp.ep4  pp2.dp2.cp2.tp2+sp.ep8

One dimension is plain data parallelism: every process holds the whole model, as with the strategy ddp. From two on
the data axis shards (dp_shard).

If a layout cannot keep some promises with few processes, it is degenerate and names the missing dimensions.

    python -m trainer.layout --help

Axes x processes -> a device mesh. Its rules do not depend on a run's data, length or devices.

       dp_replicate ─▶              e.g. 4 processes, dp_replicate=2, dp_shard=2
dp_shard │  rank0 rank1            rows: one replica, sharded      (all-gather, reduce-scatter)
         ▼  rank2 rank3            columns: equal shards           (all-reduce)

Every broken rule is named at once, with the values that would work.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from stratlab_spec.layout.layout_rules import (
    broken_layout_rules,
    list_divisors,
    list_undivided,
    replica_problems,
)
from stratlab_spec.models.decoder import VIRTUAL_STAGES
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.models.model_specs import (
    default_image_size,
    image_size_problem,
    lone_value_problem,
    model_problems,
)
from stratlab_spec.models.teacher import teacher_problems
from stratlab_spec.schedule import count_micro_batches
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.library_rules import placement_problems
from stratlab_spec.strategies import ND_AXES, STRATEGIES

if TYPE_CHECKING:
    from stratlab_spec.models.decoder import DecoderShape


@dataclass(frozen=True)
class Axes:
    """Sizes of the mesh's axes, all at least 1."""

    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    """Distributes the experts among dp_shard x cp x tp, and does not use processes of its own."""

    @property
    def world_size(self) -> int:
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return a rank's coordinates on ND_AXES; the last axis runs fastest."""
        found = {}
        for axis in reversed(ND_AXES):
            rank, found[axis] = divmod(rank, getattr(self, axis))
        return {axis: found[axis] for axis in ND_AXES}

    def dp_rank(self, rank: int) -> int:
        """Return which of the `dp` parts of a batch is this rank's."""
        at = self.coordinates(rank)
        return at["dp_replicate"] * self.dp_shard + at["dp_shard"]

    def computes_loss(self, rank: int) -> bool:
        """Return whether a rank has the end of the model: the last of the pipeline, in every schedule."""
        return self.coordinates(rank)["pp"] == self.pp - 1

    @property
    def dp(self) -> int:
        """Processes that see different samples."""
        return self.dp_replicate * self.dp_shard

    @property
    def shards(self) -> bool:
        """Return whether fully_shard has several ranks to shard parameters over (experts over tp as well)."""
        return self.dp_shard * self.cp * self.tp > 1

    @property
    def world_axis(self) -> str:
        """Return the name of the group of all processes: the axis that has them all, or "world" for several axes."""
        several = [name for name in ND_AXES if getattr(self, name) > 1]
        return several[0] if len(several) == 1 else "world"

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


KINDS = ("data", "pipeline", "tensor", "sequence", "expert")
"""n dimensions promise the first n."""
OWN_SEQUENCE_AXIS_FROM = 16
"""Processes. Below, sequence parallelism on the tp axis is the fourth dimension and does not need processes."""
LARGEST_EP = 8
FIRST_DIMENSIONS = {"pp": 2, "tp": 3, "cp": 4}


@dataclass(frozen=True)
class Layout:
    """How the processes of a run are used."""

    axes: Axes
    sequence_parallel: bool
    """On the tp axis: between the layers each of its processes holds a part of the sequence."""
    dimensions: int
    missing: tuple[str, ...]
    """Of KINDS: promised by the number of dimensions, but of degree 1."""
    reason: str
    """Why these degrees, one line."""
    is_first: bool = True
    """Whether the settings lead to it if memory does not matter."""

    @property
    def degenerate(self) -> bool:
        """Whether its name promises more than it holds; such a run is kept out of comparisons."""
        return bool(self.missing)

    @property
    def name(self) -> str:
        """Return `pp2.dp2.tp2+sp.ep4`: all degrees above 1, outermost first; dp1 without a split.

        dp2x4 is 2 replicas of 4 shards, dp8x1 8 replicas, dp8 8 shards.
        """
        axes = self.axes
        parts = [f"pp{axes.pp}"] if axes.pp > 1 else []
        if axes.dp_replicate > 1:
            parts.append(f"dp{axes.dp_replicate}x{axes.dp_shard}")
        elif axes.dp_shard > 1:
            parts.append(f"dp{axes.dp_shard}")
        parts += [f"cp{axes.cp}"] if axes.cp > 1 else []
        parts += [f"tp{axes.tp}{'+sp' if self.sequence_parallel else ''}"] if axes.tp > 1 else []
        parts += [f"ep{axes.ep}"] if axes.ep > 1 else []
        return ".".join(parts) or "dp1"

    def as_dict(self) -> dict[str, Any]:
        """Return the layout for config.json; the degrees themselves are in its `axes`."""
        return {
            "name": self.name,
            "dimensions": self.dimensions,
            "missing": list(self.missing),
            "degenerate": self.degenerate,
            "sequence_parallel": self.sequence_parallel,
            "reason": self.reason,
        }


def resolve_layout(config: Config, world_size: int, shape: DecoderShape) -> Layout:
    """Return the layout of a run of strategy nd.

    Raises:
        ConfigError: naming every broken rule, with values that work.
    """
    dimensions = config.dimensions
    if config.layout == "auto":
        axes, reason = _choose_axes(config, world_size, shape)
    else:
        axes, reason = _given_axes(config, world_size), "degrees as given"
        if "dimensions" not in config.model_fields_set:
            dimensions = max(1, len(_kinds(axes, sequence_parallel=False)))
    layout = build_layout(config, axes, shape, reason, dimensions, is_first=True)
    if problems := broken_layout_rules(config, world_size, shape, axes, layout.sequence_parallel):
        raise ConfigError(problems)
    return layout


def count_stages(config: Config, pp: int) -> int:
    """Return stages of the pipeline over all processes; with the interleaved schedule each holds two."""
    return pp * VIRTUAL_STAGES[config.pp_schedule] if pp > 1 else 1


def build_layout(
    config: Config, axes: Axes, shape: DecoderShape, reason: str, dimensions: int = 0, is_first: bool = False
) -> Layout:
    """Return these axes as a layout.

    Args:
        dimensions: 0 = the setting's.
    """
    dimensions = dimensions or config.dimensions
    split = _splits_sequence(config, axes, dimensions, shape)
    if config.layout == "auto" or "dimensions" in config.model_fields_set:
        missing = tuple(kind for kind in KINDS[:dimensions] if kind not in _kinds(axes, split))
    else:  # without promises
        dimensions, missing = max(1, len(_kinds(axes, split))), () if _kinds(axes, split) else ("data",)
    return Layout(axes, split, dimensions, missing, reason, is_first)


def _kinds(axes: Axes, sequence_parallel: bool) -> list[str]:
    """Return the KINDS with a degree of at least 2."""
    degrees = (axes.dp, axes.pp, axes.tp, max(axes.cp, axes.tp if sequence_parallel else 1), axes.ep)
    return [kind for kind, degree in zip(KINDS, degrees, strict=True) if degree > 1]


def _splits_sequence(config: Config, axes: Axes, dimensions: int, shape: DecoderShape) -> bool:
    """Return whether the tp axis splits the sequence too. Experts need it: tp ranks must send them distinct tokens."""
    if config.sequence_parallel != "auto":
        return config.sequence_parallel == "on" and axes.tp > 1
    return axes.tp > 1 and (dimensions >= 4 or shape.experts > 0)


def _given_axes(config: Config, world_size: int) -> Axes:
    """Return the given degrees; 0 = 1, and for dp_shard the remaining processes."""
    given = {axis: getattr(config, axis) or 1 for axis in (*ND_AXES, "ep")}
    axes = Axes(**given)
    if config.dp_shard:
        return axes
    return replace(axes, dp_shard=max(1, world_size // axes.world_size))


def _choose_axes(config: Config, world_size: int, shape: DecoderShape) -> tuple[Axes, str]:
    """Give pp, tp and cp a degree of 2 each if requested and possible; dp_shard gets the remaining processes.

    ep uses no further processes. One dimension uses only dp_replicate.
    """
    plural = "process" if world_size == 1 else "processes"
    if config.dimensions == 1:
        reason = f"1D on {world_size} {plural}: dp_replicate {world_size} (plain data parallelism, nothing is sharded)"
        return Axes(dp_replicate=world_size), reason
    taken, notes, left = {"pp": 1, "tp": 1, "cp": 1}, [], world_size
    for axis, from_dimensions in FIRST_DIMENSIONS.items():
        if config.dimensions < from_dimensions:
            continue
        if obstacle := _obstacle(axis, config, world_size, left, shape, taken["tp"]):
            notes.append(f"{axis} 1 ({obstacle})")
        else:
            taken[axis], left = 2, left // 2
            notes.append(f"{axis} 2")
    axes = find_ep(config, shape, Axes(dp_shard=left, **taken))
    notes.append(f"dp_shard {left} (what is left)")
    if config.dimensions == 5 and shape.experts:
        pool = axes.dp_shard * axes.cp * axes.tp
        notes.append(
            f"ep {axes.ep} ({shape.experts} experts, dp_shard x cp x tp = {pool}, at most {LARGEST_EP})"
        )
    return axes, f"{config.dimensions}D on {world_size} {plural}: {', '.join(notes)}"


def find_ep(config: Config, shape: DecoderShape, axes: Axes) -> Axes:
    """Return the axes with the experts distributed among them, up to their number; unchanged with fewer than 5
    dimensions.
    """
    if config.dimensions < 5 or not shape.experts or "tp" not in shape.dims:
        return axes
    pool = axes.dp_shard * axes.cp * axes.tp
    return replace(
        axes, ep=max(n for n in range(1, LARGEST_EP + 1) if pool % n == 0 and shape.experts % n == 0)
    )


def _obstacle(axis: str, config: Config, world_size: int, left: int, shape: DecoderShape, tp: int) -> str:
    """Why `axis` cannot be 2; "" = it can."""
    if axis not in shape.dims:
        return f"transformers does not plan {axis} for model_type {shape.family!r}"
    if axis == "pp" and config.dimensions == 5 and shape.experts and world_size == 2:
        return "on 2 processes a pipeline would leave the experts only one"
    if axis == "cp" and world_size < OWN_SEQUENCE_AXIS_FROM:
        return f"from {OWN_SEQUENCE_AXIS_FROM} processes on; below, tp splits the sequence"
    if left % 2:
        return "1 process is left" if left == 1 else f"2 does not divide the {left} processes left"
    if axis == "pp":
        stages = count_stages(config, 2)
        return (
            f"{stages} stages need as many layers, there are {shape.layers}" if stages > shape.layers else ""
        )
    if axis == "tp":
        odd = list_undivided(shape, 2)
        return f"2 does not divide {', '.join(odd)}" if odd else ""
    if config.seq_len % (2 * tp):
        return f"{2 * tp} does not divide seq_len={config.seq_len}"
    if config.cp_method == "ulysses" and shape.heads // tp % 2:
        return f"2 does not divide heads/tp={shape.heads // tp}"
    return ""


AXES = ("dp_replicate", "dp_shard")


def broken_rules(config: Config, world_size: int, processes_per_node: int = 0) -> list[str]:
    """Return one sentence per rule that these settings break on `world_size` processes.

    Args:
        processes_per_node: 0 = all on one node.
    """
    if config.strategy == "nd":
        try:
            resolve_layout(config, world_size, read_shape(config))
        except ConfigError as failure:
            return failure.problems
        return []
    problems = []
    allowed = STRATEGIES[config.strategy].axes
    for axis in AXES:
        if (size := getattr(config, axis)) > 1 and axis not in allowed:
            uses = f"uses only {', '.join(allowed)}" if allowed else "has no axes"
            problems.append(
                f"TRAINER_{axis.upper()}={size}: strategy {config.strategy} {uses}; leave it out [SL-axis-unused]"
            )
    if not allowed and world_size != 1:
        problems.append(
            f"strategy {config.strategy} runs in 1 process, but there are {world_size} "
            "(nodes x processes per node) [SL-single-one-process]"
        )
    sizes = _fill(config, world_size, processes_per_node)
    product = sizes.world_size
    if allowed and product != world_size:
        factors = " x ".join(f"{axis}={getattr(sizes, axis)}" for axis in allowed)
        problems.append(
            f"{factors} makes {product} processes, but there are {world_size}; 0 = fill up, "
            f"else each of {', '.join(allowed)} must be one of {list_divisors(world_size)} [SL-axes-processes]"
        )
    per_step = config.micro_batch_size * max(1, world_size)
    if config.global_batch_size % per_step:
        fits = max(1, config.global_batch_size // per_step) * per_step
        problems.append(
            f"TRAINER_GLOBAL_BATCH_SIZE={config.global_batch_size}: must be a multiple of "
            f"TRAINER_MICRO_BATCH_SIZE={config.micro_batch_size} x {world_size} processes = {per_step}, "
            f"for example {fits} [SL-axes-batch-indivisible]"
        )
        return problems
    micro_batches = count_micro_batches(config.global_batch_size, config.micro_batch_size, max(1, world_size))
    if "accumulate" in STRATEGIES[config.strategy].knobs:
        problems += replica_problems(config, sizes.dp_replicate, sizes.dp_shard, micro_batches)
    if config.static_graph and micro_batches > 1:
        problems.append(
            "TRAINER_STATIC_GRAPH=true: DDP learns the graph in its first backward pass, which reduces nothing while a "
            f"step goes over {micro_batches} micro-batches (torch 2.13); leave it out, or take "
            f"TRAINER_MICRO_BATCH_SIZE={config.global_batch_size // world_size} [SL-static-graph-accumulates]"
        )
    return problems


def _fill(config: Config, world_size: int, processes_per_node: int) -> Axes:
    """Return the requested sizes; 0 = fill up, for replicas of shards one node with shards."""
    allowed = STRATEGIES[config.strategy].axes
    asked = {axis: getattr(config, axis) for axis in allowed}
    if len(allowed) == 2 and not any(asked[axis] for axis in allowed):
        asked["dp_shard"] = processes_per_node or world_size
    sizes = {axis: asked[axis] or 1 for axis in allowed}
    for axis in allowed:
        if asked[axis] == 0:
            claimed = math.prod(size for other, size in sizes.items() if other != axis)
            sizes[axis] = max(1, world_size // claimed)
            break
    return Axes(**sizes)


def resolve_axes(config: Config, world_size: int, processes_per_node: int = 0) -> Axes:
    """Return axis sizes for `world_size` processes, `processes_per_node` on each node (0 = all on one).

    Raises:
        ConfigError: naming every broken rule.
        DataMissing: the shape of the model is not available (nd).
    """
    if config.strategy == "nd":
        return resolve_layout(config, world_size, read_shape(config)).axes
    if problems := broken_rules(config, world_size, processes_per_node):
        raise ConfigError(problems)
    return _fill(config, world_size, processes_per_node)


def mesh_names(config: Config) -> tuple[str, ...]:
    """Return the axes of the mesh that this strategy works on."""
    return ND_AXES if config.strategy == "nd" else AXES


def shape_problems(config: Config, ranks: int, per_node: int) -> list[str]:
    """Return one sentence per broken rule.

    Raises:
        DataMissing: a model whose shape is not available.
    """
    problems = broken_rules(config, ranks, per_node) + model_problems(config)
    problems += placement_problems(config, ranks, per_node)
    if not config.is_text:
        size = image_size_problem(config, config.image_size or default_image_size(config))
        problems += [problem for problem in (size, lone_value_problem(config, ranks)) if problem]
    return problems + teacher_problems(config)
