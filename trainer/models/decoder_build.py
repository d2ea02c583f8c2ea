"""A language model as a run trains it: its weights, its adapters, and the activation checkpointing of any model.

What of a block is kept for the backward pass, and what is computed again in it:

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
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from stratlab_spec.models.decoder import count_flops_per_token
from stratlab_spec.models.decoder_config import decoder_problems, read_shape
from stratlab_spec.models.model_specs import compiled_batch_norm
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.library_rules import NONE, SELECTIVE, recomputes
from trainer.models import packing
from trainer.models.batch_norm import find_batch_norms
from trainer.models.decoder import Decoder, build_hugging_face, restore_buffers
from trainer.models.model_with_loss import ImageClassifier
from trainer.models.packing import Bounds
from trainer.models.weights import fill_weights, open_weights

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
        if find_batch_norms(block):
            if config.compile:
                raise ConfigError(compiled_batch_norm(config.model_name, setting))
            options["context_fn"] = partial(_with_statistics_kept, block, kept)
        elif kept:
            options["context_fn"] = kept
        block.forward = partial(_recompute, block, block.forward, options)


def _recompute(block: nn.Module, forward: Any, options: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    if not block.training:
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, **options, **kwargs)


def _with_statistics_kept(block: nn.Module, kept: Callable[[], Contexts] | None) -> Contexts:
    forward, again = kept() if kept else (nullcontext(), nullcontext())
    return forward, _statistics_kept(block, again)


@contextmanager
def _statistics_kept(block: nn.Module, inner: AbstractContextManager[Any]) -> Iterator[None]:
    """Batch norm must not count the same micro-batch twice: a momentum of 0 leaves its statistics as they are."""
    layers = find_batch_norms(block).values()
    before = [(layer, layer.momentum, layer.num_batches_tracked) for layer in layers]
    try:
        for layer in layers:
            layer.momentum, layer.num_batches_tracked = 0.0, None
        with inner:
            yield
    finally:
        for layer, momentum, counter in before:
            layer.momentum, layer.num_batches_tracked = momentum, counter


def build_decoder(config: Config, *, empty: bool = False, bounds: Bounds | None = None) -> Decoder:
    """The model on the CPU in fp32 with its weights, adapters and activation checkpointing.

    Fresh weights depend on the seed and each parameter's name alone. The router's auxiliary loss of a mixture of
    experts is off: the loss is the cross-entropy, as for dense models.

    Args:
        empty: on the meta device instead, without weights: nothing is allocated.
        bounds: of packed rows, see `Decoder`.

    Raises:
        ConfigError: settings that this model cannot have.
        DataMissing: a model or weights that are not to be had.
    """
    if problems := decoder_problems(config):
        raise ConfigError(problems)
    shape = read_shape(config)
    with torch.device("meta"):
        decoder = Decoder(
            build_hugging_face(shape), shape, packed=config.packing, seq_len=config.seq_len, bounds=bounds
        )
        decoder.loss.smoothing = config.label_smoothing
        decoder.loss.chunk_tokens = config.loss_chunk_tokens
        if config.lora_rank:
            from trainer.models.lora import apply_lora

            apply_lora(decoder, config)
            decoder.flops_per_token_literature = count_flops_per_token(
                shape, config.seq_len, causal=False, lora=True
            )
    if not empty:
        decoder.to_empty(device="cpu")
        decoder.tie_weights()
        restore_buffers(decoder, "cpu")
        fill_weights(decoder, open_weights(config, shape))
    if config.activation_checkpointing != NONE:
        apply_checkpointing(decoder, config)
    return decoder
