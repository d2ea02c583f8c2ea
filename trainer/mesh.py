"""Axes x processes -> a device mesh. Every broken rule is named at once, with the values that would work.

       dp_replicate ─▶              e.g. 4 processes, dp_replicate=2, dp_shard=2
dp_shard │  rank0 rank1            rows: one replica, sharded      (all-gather, reduce-scatter)
         ▼  rank2 rank3            columns: equal shards           (all-reduce)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from trainer.config import Config, ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("dp_replicate", "dp_shard")

# The axes that a strategy may use; the first one takes the processes that nobody claimed. Where nobody claims any,
# dp_shard of a strategy with two axes takes the processes of one node: the fast links.
STRATEGY_AXES: dict[str, tuple[str, ...]] = {
    "single": (),
    "ddp": ("dp_replicate",),
    "fsdp": ("dp_shard",),
    "hsdp": ("dp_replicate", "dp_shard"),
    "zero1": ("dp_shard",),
    "zero2": ("dp_shard",),
    "zero3": ("dp_shard",),
    "zeropp": ("dp_shard",),
}


@dataclass(frozen=True)
class Axes:
    """Sizes of the mesh's axes, all at least 1."""

    dp_replicate: int = 1
    dp_shard: int = 1

    @property
    def world_size(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def dp(self) -> int:
        """Processes that see different samples."""
        return self.dp_replicate * self.dp_shard

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def broken_rules(config: Config, world_size: int, processes_per_node: int = 0) -> list[str]:
    """One sentence per rule that these settings break on `world_size` processes.

    Args:
        processes_per_node: 0 = all on one node.
    """
    problems = []
    allowed = STRATEGY_AXES[config.strategy]
    asked = {axis: getattr(config, axis) for axis in AXES}
    for axis, size in asked.items():
        if size > 1 and axis not in allowed:
            uses = f"uses only {', '.join(allowed)}" if allowed else "has no axes"
            problems.append(f"TRAINER_{axis.upper()}={size}: strategy {config.strategy} {uses}; leave it out")
    if not allowed and world_size != 1:
        problems.append(
            f"strategy {config.strategy} runs in 1 process, but there are {world_size} "
            "(nodes x processes per node)"
        )
    sizes = _fill(asked, allowed, world_size, processes_per_node)
    product = sizes.world_size
    if allowed and product != world_size:
        factors = " x ".join(f"{axis}={getattr(sizes, axis)}" for axis in allowed)
        divisors = ", ".join(str(n) for n in range(1, world_size + 1) if world_size % n == 0)
        problems.append(
            f"{factors} makes {product} processes, but there are {world_size}; 0 = fill up, "
            f"else each of {', '.join(allowed)} must be one of {divisors}"
        )
    per_step = config.micro_batch_size * max(1, world_size)
    if config.global_batch_size % per_step:
        fits = max(1, config.global_batch_size // per_step) * per_step
        problems.append(
            f"TRAINER_GLOBAL_BATCH_SIZE={config.global_batch_size}: must be a multiple of "
            f"TRAINER_MICRO_BATCH_SIZE={config.micro_batch_size} x {world_size} processes = {per_step}, "
            f"for example {fits}"
        )
    return problems


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
    """
    if problems := broken_rules(config, world_size, processes_per_node):
        raise ConfigError(problems)
    asked = {axis: getattr(config, axis) for axis in AXES}
    return _fill(asked, STRATEGY_AXES[config.strategy], world_size, processes_per_node)


def build_mesh(axes: Axes, device_type: str) -> DeviceMesh:
    """The mesh over all processes; the process group must exist."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device_type, tuple(axes.as_dict().values()), mesh_dim_names=AXES)
