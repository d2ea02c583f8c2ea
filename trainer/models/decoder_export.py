"""A trained decoder as files of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.models.decoder import Decoder, build_hugging_face
from trainer.models.merged import merge_adapters
from trainer.settings.config import Config
from trainer.shapes.model_shapes import read_model_json

_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def export_decoder(
    model: nn.Module, state: dict[str, Tensor], config: Config, facts: dict[str, Any], folder: Path
) -> None:
    """`AutoModelForCausalLM.from_pretrained(folder)` gives the same logits; adapters merged, and alone beside.

    Args:
        model: tells the shape; may be wrapped, sharded or empty.
        state: the whole model's tensors on the CPU, by the names of `build_decoder`.
        facts: `tokenizer`, if there is one: written beside the model.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()
    decoder = find_decoder(model)
    if config.lora_rank:
        from trainer.models.lora import save_adapter

        save_adapter(state, decoder, config, folder / "adapter")
    merged = merge_adapters(decoder, state, config)
    if decoder.shape.tied:
        merged["lm_head.weight"] = merged["model.embed_tokens.weight"]
    with torch.device("meta"):
        hf = build_hugging_face(decoder.shape)
    hf.load_state_dict(merged, strict=True, assign=True)
    hf.tie_weights()
    hf.config.use_cache = True
    tokenizer, source = facts.get("tokenizer"), read_model_json(config)
    for name in _TOKENS:
        value = getattr(tokenizer, name, None) if tokenizer else source.get(name)
        setattr(hf.config, name, value)
        setattr(hf.generation_config, name, value)
    hf.save_pretrained(folder)
    if tokenizer:
        tokenizer.save_pretrained(folder)


def find_decoder(model: nn.Module) -> Decoder:
    """The decoder inside whatever a strategy wrapped around it."""
    for module in model.modules():
        if isinstance(module, Decoder):
            return module
    raise AssertionError("no decoder inside")
