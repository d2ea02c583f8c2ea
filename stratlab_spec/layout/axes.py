"""The axes of the device mesh.

rank = (((pp x dp_replicates + dp_replicate) x dp_shards + dp_shard) x cps + cp) x tps + tp
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from stratlab_spec.settings.config import Config
from stratlab_spec.strategies import ND_AXES


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


AXES = ("dp_replicate", "dp_shard")


def mesh_names(config: Config) -> tuple[str, ...]:
    """Return the axes of the mesh that this strategy works on."""
    return ND_AXES if config.strategy == "nd" else AXES
