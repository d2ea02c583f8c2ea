"""Gradient checkpointing: a block keeps its input only and computes the rest again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from trainer.models.classifier import ImageClassifier
from trainer.models.decoder import Decoder
from trainer.settings.config import Config, ConfigError
from trainer.shapes.model_shapes import compiled_batch_norm


def apply_checkpointing(model: ImageClassifier | Decoder, config: Config) -> None:
    """Makes every block of the model recompute itself while it trains (non-reentrant).

    The block's `forward` is replaced, not the block wrapped: names stay, and the hooks by which strategies gather
    parameters run outside of what is recomputed, once (as in transformers' GradientCheckpointingLayer).

    Raises:
        ConfigError: batch norm inside of blocks that are compiled (torch 2.13: BackendCompilerFailed).
    """
    for block in model.blocks():
        options: dict[str, Any] = {"use_reentrant": False}
        if _batch_norms(block):
            if config.compile:
                raise ConfigError([compiled_batch_norm(config.model_name)])
            options["context_fn"] = partial(_contexts, block)
        block.forward = partial(_recompute, block, block.forward, options)


def _recompute(block: nn.Module, forward: Any, options: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    if not block.training:
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, **options, **kwargs)


def _batch_norms(block: nn.Module) -> list[_NormBase]:
    return [m for m in block.modules() if isinstance(m, _NormBase) and m.track_running_stats]


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _statistics_kept(block)


@contextmanager
def _statistics_kept(block: nn.Module) -> Iterator[None]:
    """Batch norm must not count the same micro-batch twice: a momentum of 0 leaves its statistics as they are."""
    layers = _batch_norms(block)
    before = [(layer, layer.momentum, layer.num_batches_tracked) for layer in layers]
    try:
        for layer in layers:
            layer.momentum, layer.num_batches_tracked = 0.0, None
        yield
    finally:
        for layer, momentum, counter in before:
            layer.momentum, layer.num_batches_tracked = momentum, counter
