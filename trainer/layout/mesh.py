"""Axes x processes -> a device mesh. Every broken rule is named at once, with the values that would work.

       dp_replicate ─▶              e.g. 4 processes, dp_replicate=2, dp_shard=2
dp_shard │  rank0 rank1            rows: one replica, sharded      (all-gather, reduce-scatter)
         ▼  rank2 rank3            columns: equal shards           (all-reduce)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.layout.axes import ND_AXES, Axes
from trainer.layout.resolve import layout_problems, resolve_layout
from trainer.settings.config import Config, ConfigError
from trainer.settings.knob_table import replica_problems
from trainer.settings.strategy_table import STRATEGIES
from trainer.shapes.decoder_json import read_shape

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("dp_replicate", "dp_shard")


def broken_rules(config: Config, world_size: int, processes_per_node: int = 0) -> list[str]:
    """One sentence per rule that these settings break on `world_size` processes.

    Args:
        processes_per_node: 0 = all on one node.
    """
    if config.strategy == "nd":
        return _broken_nd_rules(config, world_size)
    problems = []
    allowed = STRATEGIES[config.strategy].axes
    asked = {axis: getattr(config, axis) for axis in AXES}
    for axis, size in asked.items():
        if size > 1 and axis not in allowed:
            uses = f"uses only {', '.join(allowed)}" if allowed else "has no axes"
            problems.append(
                f"TRAINER_{axis.upper()}={size}: strategy {config.strategy} {uses}; leave it out [SL-axis-unused]"
            )
    if not allowed and world_size != 1:
        problems.append(
            f"strategy {config.strategy} runs in 1 process, but there are {world_size} "
            "(nodes x processes per node) [SL-single-one-process]"
        )
    sizes = _fill(asked, allowed, world_size, processes_per_node)
    product = sizes.world_size
    if allowed and product != world_size:
        factors = " x ".join(f"{axis}={getattr(sizes, axis)}" for axis in allowed)
        divisors = ", ".join(str(n) for n in range(1, world_size + 1) if world_size % n == 0)
        problems.append(
            f"{factors} makes {product} processes, but there are {world_size}; 0 = fill up, "
            f"else each of {', '.join(allowed)} must be one of {divisors} [SL-axes-processes]"
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
    if "accumulate" in STRATEGIES[config.strategy].knobs:
        problems += replica_problems(
            config, sizes.dp_replicate, sizes.dp_shard, config.global_batch_size // per_step
        )
    if config.static_graph and config.global_batch_size > per_step:
        problems.append(
            "TRAINER_STATIC_GRAPH=true: DDP learns the graph in its first backward pass, which reduces nothing while a "
            f"step goes over {config.global_batch_size // per_step} micro-batches (torch 2.13); leave it out, or take "
            f"TRAINER_MICRO_BATCH_SIZE={config.global_batch_size // world_size} [SL-static-graph-accumulates]"
        )
    return problems


def _broken_nd_rules(config: Config, world_size: int) -> list[str]:

    try:
        shape = read_shape(config)
    except ConfigError as failure:
        return failure.problems
    return layout_problems(config, world_size, shape)


def _fill(asked: dict[str, int], allowed: tuple[str, ...], world_size: int, processes_per_node: int) -> Axes:
    asked = dict(asked)
    if len(allowed) == 2 and not any(asked[axis] for axis in allowed):
        asked["dp_shard"] = processes_per_node or world_size
    sizes = {axis: asked[axis] or 1 for axis in allowed}
    for axis in allowed:
        if asked[axis] == 0:
            claimed = 1
            for other, size in sizes.items():
                claimed *= size if other != axis else 1
            sizes[axis] = max(1, world_size // claimed)
            break
    return Axes(**sizes)


def resolve_axes(config: Config, world_size: int, processes_per_node: int = 0) -> Axes:
    """Axis sizes for `world_size` processes, `processes_per_node` on each node (0 = all on one).

    Raises:
        ConfigError: naming every broken rule.
        DataMissing: the shape of the model is not to be had (nd).
    """
    if config.strategy == "nd":
        return resolve_layout(config, world_size, read_shape(config)).axes
    if problems := broken_rules(config, world_size, processes_per_node):
        raise ConfigError(problems)
    asked = {axis: getattr(config, axis) for axis in AXES}
    return _fill(asked, STRATEGIES[config.strategy].axes, world_size, processes_per_node)


def build_mesh(axes: Axes, device_type: str, names: tuple[str, ...] = AXES) -> DeviceMesh:
    """The mesh of the axes `names` over all processes; the process group must exist."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    sizes = tuple(getattr(axes, name) for name in names)
    # an axis over all processes would borrow the default group, which says nothing about its axis (torch 2.13)
    own = dict.fromkeys(names, dist.get_backend()) if names == ND_AXES else None
    return init_device_mesh(device_type, sizes, mesh_dim_names=names, backend_override=own)  # type: ignore[arg-type]


def mesh_names(config: Config) -> tuple[str, ...]:
    """The axes of the mesh that this strategy works on."""
    return ND_AXES if config.strategy == "nd" else AXES
