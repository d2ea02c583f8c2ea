"""What a strategy should hold at its peak, by arithmetic: its share of the state, what is in use, and the work itself.

    peak = state / ranks + blocks in use (parameters, gradients) + buckets + what one process holds besides its state

The last term is counted of `single` with the same work per rank, where no sharding takes part. A strategy that holds
more than a twentieth above this pays for something that the lab or a library keeps besides.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.memory.configurations import Configuration

GIB = 2**30
TOLERANCE_PCT = 5.0
BUCKETS_GIB = 2 * 192 / 1024
"""reduce_bucket_mib twice: one fills while the other travels."""
STATE_CAUSES = ("parameters", "master copies", "gradients", "gradient buckets", "optimizer state")


@dataclass(frozen=True)
class Sizes:
    """Numbers of parameters."""

    block: int
    """Of one of its equal blocks."""
    blocks: int
    root: int
    """Of what is in no block: embeddings, the last norm, the head."""

    @property
    def gib(self) -> float:
        """All of them in fp32."""
        return 4 * (self.block * self.blocks + self.root) / GIB


SIZES = {
    "vit_huge": Sizes(block=19_677_440, blocks=32, root=2_367_720),
    "qwen2.5-3b": Sizes(block=77_078_016, blocks=36, root=311_166_976),
}


@dataclass(frozen=True)
class Shares:
    """How much of the fp32 parameters' size a strategy holds of each kind, whole and in shards."""

    whole: int
    """Copies of the parameters' size on every rank."""
    sharded: int
    gathered_blocks: int = 0
    """Besides the root, in 16 bits: the one that computes and those under way."""
    buckets: bool = False


SHARES = {
    "ddp": Shares(whole=4, sharded=0),
    "zero1": Shares(whole=2, sharded=3, buckets=True),
    "zero2": Shares(whole=1, sharded=4, buckets=True),
    "zero3": Shares(whole=0, sharded=4, gathered_blocks=2, buckets=True),
    **dict.fromkeys(("fsdp", "hsdp", "nd"), Shares(whole=0, sharded=4, gathered_blocks=2)),
}
"""Parameters, gradients and two moments; with ZeRO 1 and 2 the parameters are whole in fp32 (16 bits would lose the
exact equality of all ranks' weights with the master copies) and an fp32 copy of each shard is the optimizer's own."""


def reckon(one: Configuration, alone: dict[str, float]) -> float:
    """GiB at the peak; `alone` are the causes of its configuration of one process, with their sum as `peak`."""
    named = dict(setting.split("=", 1) for setting in one.settings.split())
    sizes, shares = SIZES[named["model"]], SHARES[named["strategy"]]
    ranks = int(named.get("dp_shard", one.ranks))
    state = sizes.gib * (shares.whole + shares.sharded / ranks)
    in_use = 0.0
    if shares.gathered_blocks:
        gradients = 4 * sizes.block
        in_use = (2 * (sizes.root + shares.gathered_blocks * sizes.block) + gradients) / GIB
    work = alone["peak"] - sum(alone[cause] for cause in STATE_CAUSES)
    return state + in_use + (BUCKETS_GIB if shares.buckets else 0) + work
