"""Export a trained model to safetensors, readable by transformers and peft; no pickles.

`export_model` merges adapters into the weights and writes a folder by the model's kind.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from stratlab_spec.models.model_specs import read_model_json, registered_name, write_preprocessing
from stratlab_spec.settings.config import Config
from trainer.models.decoder import DROPOUTS, Decoder, build_hugging_face
from trainer.models.model_with_loss import ImageClassifier


def export_model(
    model: nn.Module, state: dict[str, Tensor], config: Config, facts: dict[str, Any], folder: Path
) -> None:
    """Write config.json and model.safetensors into `folder`; call it on one rank.

    A classifier also gets a preprocessor_config.json.

    transformers writes its own models: `AutoModelForImageClassification.from_pretrained(folder)` loads a classifier,
    `AutoModelForCausalLM` a language model, with its tokenizer in the same folder. Other networks get a config.json
    that names the architecture. Both load again with TRAINER_MODEL_PATH and TRAINER_INIT=pretrained. With LoRA the
    adapters are merged, and `folder`/adapter holds only the adapters, in peft's format.

    Args:
        model: provides the names; may be wrapped, sharded or empty.
        state: the whole model's tensors on the CPU, by the names of `build_model`.
        facts: image_size, channels, num_labels, class_names, preprocessing; for a language model its `tokenizer`, if
            any.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()
    folder.mkdir(parents=True, exist_ok=True)
    # inside the strategy's wrapper
    inner = next(part for part in model.modules() if isinstance(part, Decoder | ImageClassifier))
    if config.lora_rank:
        from trainer.models.lora import save_adapter

        save_adapter(state, inner, config, folder / "adapter")
    if isinstance(inner, Decoder):
        return _write_decoder(inner, state, config, facts.get("tokenizer"), folder)
    write = _write_hugging_face if inner.core == "hf" else _write_own
    write(inner, state, config, facts, folder)
    write_preprocessing(facts["preprocessing"], facts["image_size"], folder)


def _write_decoder(
    decoder: Decoder, state: dict[str, Tensor], config: Config, tokenizer: Any, folder: Path
) -> None:
    """Write a decoder so that `AutoModelForCausalLM.from_pretrained(folder)` gives the same logits."""
    merged = merge_adapters(decoder, state, config)
    if decoder.shape.tied:
        merged[f"{decoder.head_name}.weight"] = merged[f"{decoder.embedding_name}.weight"]
    with torch.device("meta"):
        hf = build_hugging_face(decoder.shape)
    hf.load_state_dict(merged, strict=True, assign=True)
    hf.tie_weights()
    hf.config.use_cache = True
    for name, value in decoder.shape.arguments.items():
        if name.endswith(DROPOUTS):
            setattr(hf.config, name, value)
    source = read_model_json(config)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(tokenizer, name, None) if tokenizer else source.get(name)
        setattr(hf.config, name, value)
        setattr(hf.generation_config, name, value)
    hf.save_pretrained(folder)
    if tokenizer:
        tokenizer.save_pretrained(folder)


def _write_hugging_face(
    classifier: ImageClassifier, state: dict[str, Tensor], config: Config, facts: dict[str, Any], folder: Path
) -> None:
    """Write the classifier through a fresh model of the same configuration, because `classifier` may be sharded."""
    from transformers import AutoModelForImageClassification

    settings = copy.deepcopy(classifier.hf.config)  # type: ignore[union-attr]
    settings.id2label = {i: str(name) for i, name in enumerate(facts["class_names"])}
    settings.label2id = {name: i for i, name in settings.id2label.items()}
    with torch.device("meta"):
        hf = AutoModelForImageClassification.from_config(settings, dtype=torch.float32)
    hf.load_state_dict(merge_adapters(classifier, state, config), strict=True, assign=True)
    hf.save_pretrained(folder)


def _write_own(
    classifier: ImageClassifier, state: dict[str, Tensor], config: Config, facts: dict[str, Any], folder: Path
) -> None:
    described = {
        "stratlab_model": registered_name(config),
        "image_size": facts["image_size"],
        "channels": facts["channels"],
        "num_labels": facts["num_labels"],
        "class_names": list(facts["class_names"]),
    }
    merged = merge_adapters(classifier, state, config)
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in merged.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n")


def merge_adapters(
    classifier: ImageClassifier | Decoder, state: dict[str, Tensor], config: Config
) -> dict[str, Tensor]:
    """Return the state by the names inside the core, each adapter merged: W + alpha / rank * B A."""
    prefix = f"{classifier.core}." if classifier.core else ""
    inside = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    merged = {name.replace(".base_layer.", "."): t for name, t in inside.items() if ".lora_" not in name}
    turned = {n for n, m in classifier.network().named_modules() if getattr(m, "fan_in_fan_out", False)}
    for name, down in inside.items():
        if not name.endswith(".lora_A.default.weight"):
            continue
        layer = name.removesuffix(".lora_A.default.weight")
        up = inside[f"{layer}.lora_B.default.weight"]
        base = merged[f"{layer}.weight"]
        product = up.flatten(1) @ down.flatten(1)
        product = product.T if layer in turned else product.view_as(base)
        merged[f"{layer}.weight"] = base + config.lora_alpha / config.lora_rank * product
    return merged
