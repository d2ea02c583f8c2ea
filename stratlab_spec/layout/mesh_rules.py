"""Axes x processes -> a device mesh. Its rules do not depend on a run's data, length or devices.

       dp_replicate ─▶              e.g. 4 processes, dp_replicate=2, dp_shard=2
dp_shard │  rank0 rank1            rows: one replica, sharded      (all-gather, reduce-scatter)
         ▼  rank2 rank3            columns: equal shards           (all-reduce)

Every broken rule is named at once, with the values that would work.
"""

from __future__ import annotations

import math

from stratlab_spec.layout.axes import AXES, Axes
from stratlab_spec.layout.layout_rules import list_divisors, replica_problems
from stratlab_spec.layout.nd_layout import resolve_layout
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
from stratlab_spec.strategies import STRATEGIES


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
