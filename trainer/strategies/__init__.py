"""Build the run's strategy; stratlab_spec/strategies.py maps each name to one file of this folder."""

from __future__ import annotations

from importlib import import_module

from stratlab_spec.settings.config import Config
from stratlab_spec.strategies import STRATEGIES
from trainer.engine import Engine
from trainer.measuring.phases import Phases
from trainer.models.mixed_precision import apply_low_precision
from trainer.models.model_with_loss import Learner
from trainer.run import Run


def builds_empty(config: Config, rank: int) -> bool:
    """Whether this rank's model comes without weights (on the meta device).

    Either the strategy shards rank 0's weights, or (nd) every rank reads its own part.
    """
    empty = STRATEGIES[config.strategy].builds_empty
    return empty == "everybody" or (empty == "others" and rank != 0)


def build_engine(run: Run, model: Learner, phases: Phases) -> Engine:
    """Build the model under the run's strategy, on this rank's device.

    Args:
        model: on the CPU; on the meta device if `builds_empty`.
    """
    if run.precision.autocast_dtype is not None:
        apply_low_precision(model, run.precision.autocast_dtype)
    strategy = import_module(f"trainer.strategies.{STRATEGIES[run.config.strategy].file}")
    engine: Engine = strategy.build(run, model, phases)
    return engine
