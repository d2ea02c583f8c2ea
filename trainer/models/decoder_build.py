"""A language model as a run trains it: its weights, adapters and activation checkpointing."""

from __future__ import annotations

import torch

from trainer.models.activation_checkpointing import apply_checkpointing
from trainer.models.decoder import Decoder, build_hugging_face, restore_buffers
from trainer.models.decoder_weights import fill_weights
from trainer.models.packing import Bounds
from trainer.models.weight_sources import open_weights
from trainer.settings.config import Config, ConfigError
from trainer.settings.recomputation import NONE
from trainer.shapes.decoder_json import read_shape
from trainer.shapes.decoder_rules import decoder_problems
from trainer.shapes.decoder_shapes import count_flops_per_token


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
