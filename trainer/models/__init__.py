"""Build image classifiers by registered name, hub id or folder.

`build_model` chooses between three sources. The ViT family and the networks of stratlab_spec/registry.py are
implemented here or in torchvision. All other models come from Hugging Face. Every model is a `Learner` and counts its
own FLOPs.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import torch

from stratlab_spec.models.model_specs import (
    HUB_IDS,
    TORCHVISION,
    match_names,
    model_problems,
    no_batch_norm,
    read_model_json,
    read_names,
    read_vit_shape,
    registered_name,
)
from stratlab_spec.registry import NETWORKS
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.library_rules import NONE
from trainer.models.model_with_loss import ClassLoss, ImageClassifier, wrong_channels


def build_model(
    config: Config,
    *,
    image_size: int,
    channels: int,
    num_labels: int,
    empty: bool = False,
    whole: bool = False,
    class_names: Sequence[str] = (),
) -> ImageClassifier:
    """Build the model on the CPU in fp32, with adapters and activation checkpointing.

    Fresh weights depend only on the seed.

    Args:
        empty: build on the meta device instead, without weights.
        whole: require the head too when weights are loaded.
        class_names: of the data, in the order of its labels. If the weights know the same classes in another order,
            their head is reordered. If they know other classes, the head is fresh. None = do not compare.

    Raises:
        ConfigError: the model does not support a setting.
        DataMissing: the model or its weights are not available.
    """
    if problems := model_problems(config):
        raise ConfigError(problems)
    with torch.device("meta" if empty else "cpu"):
        torch.manual_seed(config.seed)
        model = _build(config, image_size, channels, num_labels, empty, whole, class_names)
        model.loss = ClassLoss(config.label_smoothing)
        if config.batch_norm == "synchronised":
            from trainer.models.batch_norm import apply_synchronised_batch_norm

            if not apply_synchronised_batch_norm(model):
                raise ConfigError(no_batch_norm(config.model_name))
        if config.lora_rank:
            from trainer.models.lora import apply_lora

            apply_lora(model, config)
    if config.activation_checkpointing != NONE:
        from trainer.models.decoder_build import apply_checkpointing

        apply_checkpointing(model, config)
    return model


def _build(
    config: Config,
    image_size: int,
    channels: int,
    num_labels: int,
    empty: bool,
    whole: bool,
    class_names: Sequence[str],
) -> ImageClassifier:
    name, pretrained = registered_name(config), config.init == "pretrained"
    source = (config.model_path or config.model) if not name else ""
    if pretrained and not config.model_path:
        source = HUB_IDS.get(name, source)
    if source:
        from trainer.models.hugging_face import build_hugging_face

        return build_hugging_face(config, source, image_size, channels, num_labels, empty, whole, class_names)
    described = read_model_json(config) if pretrained and config.model_path else {}
    weight_channels = channels  # fresh weights take the channels of the images
    if pretrained:
        weight_channels = int(described.get("channels", channels)) if config.model_path else 3
    sizes = (image_size, channels, num_labels)
    model: ImageClassifier
    if name in TORCHVISION:
        from trainer.models.torchvision_networks import build_torchvision

        model = build_torchvision(name, *sizes, weight_channels)
    elif channels != weight_channels:
        raise ConfigError(wrong_channels(name, weight_channels, channels))
    elif shape := read_vit_shape(config):
        from trainer.models.hugging_face import build_vit

        model = build_vit(shape, *sizes)
    else:
        module, _, function = NETWORKS[name].builder.partition(":")
        model = getattr(import_module(f"trainer.models.{module}"), function)(config, *sizes)
    if pretrained and not empty:
        from trainer.models.weights import load_weights, read_weights

        if config.model_path:
            state = read_weights(config)
        else:
            from trainer.models.torchvision_networks import download_weights

            state = download_weights(name)
        load_weights(config, model, state, whole, match_names(read_names(described), class_names))
    return model
