"""Build a language model for a run, and apply activation checkpointing to any model.

`build_decoder` loads the weights, adds the adapters and calls `apply_checkpointing`. The setting decides which
activations of a block stay in memory for the backward pass:

activation_checkpointing   keeps of a block                                recomputes
none                       everything that autograd saves                  nothing
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
from torch.utils.checkpoint import checkpoint

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
from trainer.models.selective_checkpointing import create_contexts
from trainer.models.weights import fill_weights, open_weights

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
"""Return the contexts of the forward pass and of the recomputation."""

_NAMES = (
    *("mm", "addmm", "bmm", "baddbmm", "convolution", "_grouped_mm"),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
    *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu"),
)
KEPT = [getattr(torch.ops.aten, name).default for name in _NAMES if hasattr(torch.ops.aten, name)]
"""Results that `selective` keeps: nearly all of a block's arithmetic."""
if packing.varlen is not None:  # trainer/models/packing.py registers this operator
    KEPT.append(torch.ops.torch_attn._varlen_attn.default)


def apply_checkpointing(model: ImageClassifier | Decoder, config: Config) -> None:
    """Make the model's blocks recompute themselves in training, in place (non-reentrant).

    It replaces the block's `forward` instead of wrapping the block. So names stay, and the hooks that gather parameters
    run once, outside the recomputation (as in transformers' GradientCheckpointingLayer).

    Raises:
        ConfigError: a compiled block contains batch norm (torch 2.13: BackendCompilerFailed).
    """
    setting = config.activation_checkpointing
    for index, block in enumerate(model.blocks()):
        if not recomputes(setting, index):
            continue
        options: dict[str, Any] = {"use_reentrant": False}
        kept = partial(create_contexts, _list_kept(block)) if setting == SELECTIVE else None
        if find_batch_norms(block):
            if config.compile:
                raise ConfigError(compiled_batch_norm(config.model_name, setting))
            options["context_fn"] = partial(_with_statistics_kept, block, kept)
        elif kept:
            options["context_fn"] = kept
        block.forward = partial(_recompute, block, block.forward, options)


def _list_kept(block: nn.Module) -> list[Any]:
    """Return KEPT, without the products of experts with biases (gpt-oss): transformers adds biases in place."""
    has_biases = any(getattr(module, "has_bias", False) is True for module in block.modules())
    return [kept for kept in KEPT if not (has_biases and kept is torch.ops.aten._grouped_mm.default)]


def _recompute(block: nn.Module, forward: Any, options: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    if not block.training:
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, **options, **kwargs)


def _with_statistics_kept(block: nn.Module, kept: Callable[[], Contexts] | None) -> Contexts:
    forward, again = kept() if kept else (nullcontext(), nullcontext())
    return forward, _statistics_kept(block, again)


@contextmanager
def _statistics_kept(block: nn.Module, inner: AbstractContextManager[Any]) -> Iterator[None]:
    """Freeze batch norm statistics with a momentum of 0, so that recomputation does not count a micro-batch twice."""
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
    """Build the model on the CPU in fp32 with its weights, adapters and activation checkpointing.

    Fresh weights depend only on the seed and each parameter's name. The router's auxiliary loss of a mixture of experts
    is off: the loss is the cross-entropy, as for dense models.

    Args:
        empty: build on the meta device instead, without allocating weights.
        bounds: of packed rows, see `Decoder`.

    Raises:
        ConfigError: the model does not support a setting.
        DataMissing: the model or its weights are not available.
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
        fill_weights(decoder, open_weights(config, decoder))
    if config.activation_checkpointing != NONE:
        apply_checkpointing(decoder, config)
    return decoder
