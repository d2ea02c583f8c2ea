"""One small file per strategy; the only place that picks one by name."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from trainer.config import Config
from trainer.engine import Engine
from trainer.phases import Phases
from trainer.precision import Precision

# Every rank but the first builds the model without memory; the weights arrive in shards.
BUILT_EMPTY: tuple[str, ...] = ("fsdp", "hsdp", "zero3", "zeropp")


def builds_empty(config: Config, rank: int) -> bool:
    """Whether this rank's model comes without weights (on the meta device): the strategy shards rank 0's, or, with
    nd, every rank reads its own part."""
    return config.strategy == "nd" or (rank != 0 and config.strategy in BUILT_EMPTY)


def build_engine(
    config: Config, mesh: DeviceMesh, model: nn.Module, phases: Phases, precision: Precision
) -> Engine:
    """The model under `config.strategy`, on this rank's device.

    Args:
        model: on the CPU; on the meta device where `builds_empty` says so.
    """
    match config.strategy:
        case "single":
            from trainer.strategies import single as strategy
        case "ddp":
            from trainer.strategies import ddp as strategy  # type: ignore[no-redef]
        case "fsdp":
            from trainer.strategies import fsdp as strategy  # type: ignore[no-redef]
        case "hsdp":
            from trainer.strategies import hsdp as strategy  # type: ignore[no-redef]
        case "zero1" | "zero2" | "zero3" | "zeropp":
            from trainer.strategies import zero as strategy  # type: ignore[no-redef]
        case "nd":
            from trainer.strategies import nd as strategy  # type: ignore[no-redef]
    return strategy.build(config, mesh, model, phases, precision)
