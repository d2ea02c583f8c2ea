"""The run of a rank in a test, worked out by the functions that trainer/worker.py calls."""

from __future__ import annotations

import os

from stratlab_spec.settings.config import Config
from trainer.distributed.world import Precision, World, resolve_precision
from trainer.run import Run, build_run, resolve_placement


def make_world(rank: int = 0, size: int = 1, per_node: int = 0) -> World:
    """Of a rank on a CPU; per_node: 0 = all ranks on one node."""
    return World(rank, rank % (per_node or size), size, per_node or size, "cpu", "cpu", "a processor", "here")


def run_of(config: Config, precision: Precision | None = None, per_node: int = 0) -> Run:
    """On the rank that RANK and WORLD_SIZE name, whose process group is there; what is compiled needs no compiler."""
    world = make_world(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), per_node)
    placement = resolve_placement(config, world)
    precision = precision or resolve_precision(config, "cpu")
    return build_run(config, world, placement, precision, config.global_batch_size, "aot_eager")
