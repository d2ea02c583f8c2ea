"""The faults: memory that somebody goes on holding, in a run that is otherwise as it is. Each trains as before."""

from typing import Any
from unittest import mock

from torch import Tensor

import trainer.models.chunked_cross_entropy
from trainer.measuring.held_tensors import local_part

CAUSES = {"weights": "parameters", "gradients": "gradients", "logits": "logits"}
"""Fault -> the part that the run must name."""


def plant(fault: str, engine: Any) -> None:
    """Makes this rank's engine hold more, from now to the end of the process; "" = as it is."""
    if fault:
        PLANTS[fault](engine)


def _keep_weights(engine: Any) -> None:
    """A second copy of what this rank holds of the weights, made once, as for an average that nobody takes."""
    engine.kept = [local_part(weight).detach().clone() for weight in engine.module.parameters()]


def _keep_gradients(engine: Any) -> None:
    """Of each step a copy of the gradients, before the update, until there are new ones."""
    deepspeed = getattr(engine, "_engine", None)

    def find() -> list[Tensor]:
        if deepspeed is not None:
            parts = deepspeed.optimizer.averaged_gradients.values()
            return [part for some in parts for part in some or [] if part is not None]
        return [weight.grad for weight in engine.module.parameters() if weight.grad is not None]

    owner, name = (deepspeed.optimizer, "step") if deepspeed is not None else (engine, "_update")
    update = getattr(owner, name)

    def keep_first(*given: Any, **named: Any) -> Any:
        engine.kept = None
        engine.kept = [local_part(gradient).detach().clone() for gradient in find()]
        assert engine.kept, "no gradients"
        return update(*given, **named)

    setattr(owner, name, keep_first)


def _keep_logits(engine: Any) -> None:
    """Of all micro-batches of a step, until the next one begins."""
    score, train_step = trainer.models.chunked_cross_entropy._score, engine.train_step
    engine.kept = []

    def keep(logits: Tensor, *given: Any, **named: Any) -> Any:
        engine.kept.append(logits)
        return score(logits, *given, **named)

    def begin(*given: Any, **named: Any) -> Any:
        engine.kept.clear()
        return train_step(*given, **named)

    mock.patch.object(trainer.models.chunked_cross_entropy, "_score", keep).start()
    engine.train_step = begin


PLANTS = {"weights": _keep_weights, "gradients": _keep_gradients, "logits": _keep_logits}
