"""A trained model as files that others can read: safetensors only, no pickles."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trainer.models.classifier import ImageClassifier, find_classifier
from trainer.models.decoder_export import export_decoder
from trainer.models.merged import merge_adapters
from trainer.settings.config import Config
from trainer.shapes.model_shapes import registered_name
from trainer.shapes.preprocessing import write_preprocessing


def export_model(
    model: nn.Module, state: dict[str, Tensor], config: Config, facts: dict[str, Any], folder: Path
) -> None:
    """Writes config.json and model.safetensors into `folder`, and of a classifier its
    preprocessor_config.json; on one rank.

    A model of transformers is written by transformers: `AutoModelForImageClassification.from_pretrained(folder)`,
    for a language model `AutoModelForCausalLM`, its tokenizer beside it.
    Ours and torchvision's get a config.json that names the architecture. Both load again with TRAINER_MODEL_PATH
    and TRAINER_INIT=pretrained. With LoRA the adapters are merged, and `folder`/adapter holds them alone in peft's
    format.

    Args:
        model: tells the names; may be wrapped, sharded or empty.
        state: the whole model's tensors on the CPU, by the names of `build_model`.
        facts: image_size, channels, num_labels, class_names, preprocessing; of a language model its
            `tokenizer`, if there is one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if config.is_text:
        return export_decoder(model, state, config, facts, folder)
    classifier = find_classifier(model)
    if config.lora_rank:
        from trainer.models.lora import save_adapter

        save_adapter(state, classifier, config, folder / "adapter")
    if classifier.core == "hf":
        _write_hugging_face(classifier, state, config, facts, folder)
    else:
        _write_own(classifier, state, config, facts, folder)
    write_preprocessing(facts["preprocessing"], facts["image_size"], folder)


def _write_hugging_face(
    classifier: ImageClassifier, state: dict[str, Tensor], config: Config, facts: dict[str, Any], folder: Path
) -> None:
    """Through a fresh model of the same configuration: the one at hand may be sharded."""
    import transformers
    from transformers import AutoModelForImageClassification

    transformers.utils.logging.disable_progress_bar()
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
