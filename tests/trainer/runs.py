"""The run of a rank in a test, resolved by the functions that the launcher calls."""

import os
from contextlib import suppress

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.model_specs import default_image_size
from stratlab_spec.plan import VARIABLE, resolve_plan
from stratlab_spec.settings.config import Config, ConfigError
from trainer.data import open_data
from trainer.distributed.world import Precision, World, resolve_precision
from trainer.run import Run, build_run


def make_world(rank: int = 0, size: int = 1, per_node: int = 0) -> World:
    """Of a rank on a CPU; per_node: 0 = all ranks on one node."""
    return World(rank, rank % (per_node or size), size, per_node or size, "cpu", "cpu", "a processor", "here")


def run_of(config: Config, precision: Precision | None = None, per_node: int = 0) -> Run:
    """On the rank that RANK and WORLD_SIZE name, whose process group is there; what is compiled needs no compiler."""
    world = make_world(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), per_node)
    plan = resolve_plan(config, world.size, world.local_size, config.global_batch_size)
    precision = precision or resolve_precision(config, "cpu")
    return build_run(config, world, plan, precision, "aot_eager")


def run_worker() -> int:
    """A rank from its start to its end, with the plan that a launcher would hand to it; the exit code."""
    from trainer import worker
    from trainer.prepare.preparation import ensure_cache

    with suppress(ConfigError, DataMissing, KeyError):  # the rank finds it too
        config, world = Config.from_env(os.environ), worker.read_world(os.environ)
        if config.is_text:
            samples = ensure_cache(config, lambda text: None)
        else:
            samples = len(open_data(config, config.image_size or default_image_size(config)).train)
        plan = resolve_plan(config, world.size, world.local_size, samples)
        os.environ.setdefault(VARIABLE, plan.as_variable())
    return worker.main()
