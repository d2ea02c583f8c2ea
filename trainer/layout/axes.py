"""The axes of the device mesh and where a rank is on them; without torch.

rank = (((pp x dp_replicates + dp_replicate) x dp_shards + dp_shard) x cps + cp) x tps + tp
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from trainer.settings.strategy_table import ND_AXES


@dataclass(frozen=True)
class Axes:
    """Sizes of the mesh's axes, all at least 1."""

    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    """Shares out the experts among dp_shard x cp x tp, and takes no processes of its own."""

    @property
    def world_size(self) -> int:
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank is on each axis of ND_AXES; the last axis runs fastest."""
        found = {}
        for axis in reversed(ND_AXES):
            rank, found[axis] = divmod(rank, getattr(self, axis))
        return {axis: found[axis] for axis in ND_AXES}

    def dp_rank(self, rank: int) -> int:
        """Which of the `dp` parts of a batch is this rank's."""
        at = self.coordinates(rank)
        return at["dp_replicate"] * self.dp_shard + at["dp_shard"]

    def computes_loss(self, rank: int) -> bool:
        """Whether a rank has the end of the model: the last of the pipeline, in every schedule."""
        return self.coordinates(rank)["pp"] == self.pp - 1

    @property
    def dp(self) -> int:
        """Processes that see different samples."""
        return self.dp_replicate * self.dp_shard

    @property
    def shards(self) -> bool:
        """Whether fully_shard has several ranks to shard parameters over (those of experts over tp as well)."""
        return self.dp_shard * self.cp * self.tp > 1

    @property
    def world_axis(self) -> str:
        """What a group of all processes stands for: the axis that takes them all, or "world" where several do."""
        several = [name for name in ND_AXES if getattr(self, name) > 1]
        return several[0] if len(several) == 1 else "world"

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
