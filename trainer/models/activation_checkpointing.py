"""Activation checkpointing: what of a block is kept for the backward pass, and what is computed again in it.

activation_checkpointing   keeps of a block                                computes again
none                       all that autograd asks for                      nothing
selective                  results of products and attention, its input    norms, activation functions, casts
every_N                    of every Nth block its input, of others all     every Nth block
blocks                     its input                                       the whole block
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from trainer.models import packing
from trainer.models.classifier import ImageClassifier
from trainer.models.decoder import Decoder
from trainer.settings.config import Config, ConfigError
from trainer.settings.recomputation import SELECTIVE, recomputes
from trainer.shapes.model_shapes import compiled_batch_norm

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
"""Around the forward pass, and around the recomputation."""

_NAMES = (
    *("mm", "addmm", "bmm", "baddbmm", "convolution", "_grouped_mm"),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
    *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu"),
)
KEPT = [getattr(torch.ops.aten, name).default for name in _NAMES if hasattr(torch.ops.aten, name)]
"""Results that `selective` keeps: nearly all of a block's arithmetic."""
if packing.varlen is not None:  # an operator of its own, which its module registers
    KEPT.append(torch.ops.torch_attn._varlen_attn.default)


def apply_checkpointing(model: ImageClassifier | Decoder, config: Config) -> None:
    """Makes blocks of the model recompute themselves while it trains, in place (non-reentrant).

    The block's `forward` is replaced, not the block wrapped: names stay, and the hooks by which strategies gather
    parameters run outside of what is recomputed, once (as in transformers' GradientCheckpointingLayer).

    Raises:
        ConfigError: batch norm inside of blocks that are compiled (torch 2.13: BackendCompilerFailed).
    """
    setting = config.activation_checkpointing
    for index, block in enumerate(model.blocks()):
        if not recomputes(setting, index):
            continue
        options: dict[str, Any] = {"use_reentrant": False}
        kept = partial(create_selective_checkpoint_contexts, KEPT) if setting == SELECTIVE else None
        if _batch_norms(block):
            if config.compile:
                raise ConfigError([compiled_batch_norm(config.model_name, setting)])
            options["context_fn"] = partial(_with_statistics_kept, block, kept)
        elif kept:
            options["context_fn"] = kept
        block.forward = partial(_recompute, block, block.forward, options)


def _recompute(block: nn.Module, forward: Any, options: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    if not block.training:
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, **options, **kwargs)


def _batch_norms(block: nn.Module) -> list[_NormBase]:
    return [m for m in block.modules() if isinstance(m, _NormBase) and m.track_running_stats]


def _with_statistics_kept(block: nn.Module, kept: Callable[[], Contexts] | None) -> Contexts:
    forward, again = kept() if kept else (nullcontext(), nullcontext())
    return forward, _statistics_kept(block, again)


@contextmanager
def _statistics_kept(block: nn.Module, inner: AbstractContextManager[Any]) -> Iterator[None]:
    """Batch norm must not count the same micro-batch twice: a momentum of 0 leaves its statistics as they are."""
    layers = _batch_norms(block)
    before = [(layer, layer.momentum, layer.num_batches_tracked) for layer in layers]
    try:
        for layer in layers:
            layer.momentum, layer.num_batches_tracked = 0.0, None
        with inner:
            yield
    finally:
        for layer, momentum, counter in before:
            layer.momentum, layer.num_batches_tracked = momentum, counter
