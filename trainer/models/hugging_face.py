"""Build any Hugging Face image classification model, by hub id or from a folder.

`build_hugging_face` takes each model that transformers builds from a config.json. `build_vit` builds a vision
transformer from a shape, without a download, in Hugging Face's implementation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageClassification, ViTConfig, ViTForImageClassification

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.model_specs import VitShape, match_names, read_names
from stratlab_spec.settings.config import Config, ConfigError
from trainer.models.model_with_loss import (
    ForwardFlops,
    ImageClassifier,
    count_forward_flops,
    repeat_channel,
    wrong_channels,
)
from trainer.models.weights import reorder_head


def vit_config(shape: VitShape, image_size: int, channels: int, num_labels: int) -> ViTConfig:
    """Return the configuration of a ViT with a linear head on the class token, without dropout."""
    return ViTConfig(  # type: ignore[call-arg]
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.mlp,
        patch_size=shape.patch,
        image_size=image_size,
        num_channels=channels,
        num_labels=num_labels,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def forward_flops(shape: VitShape, image_size: int, channels: int) -> ForwardFlops:
    """Return 2 T L (4 D^2 + 2 D F) + 2 n D C p^2 and 4 T^2 D L, without the head.

    T = n + 1 is the number of tokens of n patches.
    """
    patches = (image_size // shape.patch) ** 2
    tokens, width = patches + 1, shape.hidden
    linear = 2 * tokens * shape.layers * (4 * width**2 + 2 * width * shape.mlp)
    embedding = 2 * patches * width * channels * shape.patch**2
    return ForwardFlops(linear + embedding, 4 * tokens**2 * width * shape.layers)


class HuggingFaceModel(ImageClassifier):
    """Adapt a model of transformers to `ImageClassifier`; its own names are below `hf.`.

    Args:
        repeat: repeat the single channel of the images this many times; 0 = the channels fit.
    """

    core = "hf"

    def __init__(self, hf: Any, repeat: int = 0) -> None:
        super().__init__()
        self.hf = hf
        for name, parameter in hf.named_parameters():
            if name.endswith("mask_token"):  # of DINOv2's pre-training: has no gradient, for which ddp waits
                parameter.requires_grad_(False)
        self.heads = find_heads(hf)
        self._repeat = repeat

    def predict(self, images: Tensor) -> Tensor:
        """Images [batch, channel, height, width] -> logits [batch, class]."""
        images = repeat_channel(images, self._repeat) if self._repeat else images
        return self.hf(pixel_values=images).logits

    def blocks(self) -> list[nn.Module]:
        """Return the model's longest ModuleList: layers of a transformer, stages of most others."""
        lists = [m for m in self.hf.modules() if isinstance(m, nn.ModuleList) and len(m) > 1]
        if not lists:
            return [child for child in self.hf.children() if any(True for _ in child.parameters())]
        return list(max(lists, key=lambda part: sum(p.numel() for m in part for p in m.parameters())))


def build_vit(shape: VitShape, image_size: int, channels: int, num_labels: int) -> ImageClassifier:
    """Build a vision transformer with fresh weights."""
    model = HuggingFaceModel(ViTForImageClassification(vit_config(shape, image_size, channels, num_labels)))
    model.set_flops(forward_flops(shape, image_size, channels))
    return model


def build_hugging_face(
    config: Config,
    source: str,
    image_size: int,
    channels: int,
    num_labels: int,
    empty: bool,
    whole: bool = False,
    class_names: Sequence[str] = (),
) -> ImageClassifier:
    """Build the model of `source` (hub id or folder), fresh or with its weights.

    It has a head for `num_labels` and no dropout. Position embeddings of the ViT family are interpolated once, to
    `image_size`. Images with one channel are repeated for weights with three.

    Args:
        whole: require the head too when weights are loaded.
        class_names: see `build_model`.

    Raises:
        DataMissing: the model is not available, or has another architecture than its config.json.
        ConfigError: the weights do not support the channels or the image size.
    """
    pretrained, loads = config.init == "pretrained", config.init == "pretrained" and not empty
    with _refusing(config, source):
        settings = AutoConfig.from_pretrained(source)
    seen = getattr(settings, "vision_config", settings)  # a model for images and text
    size, taken = getattr(seen, "image_size", None), getattr(seen, "num_channels", None)
    if not pretrained and size is not None:
        seen.image_size = image_size
    if not pretrained and taken is not None:
        seen.num_channels = taken = channels
    taken = 3 if taken is None else taken
    if channels not in (1, taken) or (channels == 1 and taken not in (1, 3)):
        raise ConfigError(wrong_channels(config.model_name, taken, channels))
    order = match_names(read_names({"id2label": settings.id2label}), class_names)
    settings.num_labels = num_labels
    switch_dropout_off(settings)
    switch_dropout_off(seen)
    if loads:
        hf = _load(config, source, settings, whole)
    if not loads or order is None:
        with _refusing(config, source):
            fresh = AutoModelForImageClassification.from_config(settings, dtype=torch.float32)
    if not loads:
        hf = fresh
    elif order is None:
        for head in find_heads(hf):
            hf.get_submodule(head).load_state_dict(fresh.get_submodule(head).state_dict())
    elif order:
        reorder_head(hf, find_heads(hf), order)
    model = HuggingFaceModel(hf, repeat=taken if channels != taken else 0)
    try:
        if pretrained and size != image_size:
            resize_positions(hf, image_size)
        model.set_flops(_forward_flops(model, image_size, channels))
    except Exception as failure:  # a dry run: models raise various errors for a wrong size
        raise ConfigError(
            f"TRAINER_IMAGE_SIZE={image_size}: {config.model_name} expects {size} and fails: {failure} "
            "[SL-image-size-fails]"
        ) from failure
    return model


def find_heads(hf: Any) -> list[str]:
    """Return the children outside the body that hold a linear layer, or else the last linear layer."""
    body = getattr(hf, "base_model_prefix", "")
    linear = [name for name, module in hf.named_modules() if isinstance(module, nn.Linear)]
    beside = {name.partition(".")[0]: None for name in linear if not name.startswith(f"{body}.")}
    return list(beside) if body and hasattr(hf, body) and beside else linear[-1:]


def switch_dropout_off(settings: Any) -> None:
    """Set every rate of dropout or drop path in a configuration of transformers to 0."""
    for name, value in settings.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(settings, name, 0.0)


def resize_positions(hf: nn.Module, image_size: int) -> None:
    """Interpolate learned position embeddings, if any (bicubic, transformers' own)."""
    for part in hf.modules():
        positions = getattr(part, "position_embeddings", None)
        if not isinstance(positions, nn.Parameter) or not hasattr(part, "interpolate_pos_encoding"):
            continue
        patches: Any = part.patch_embeddings
        edge = image_size // part.patch_size  # type: ignore[operator]
        tokens = positions.new_empty(1, edge * edge + 1, positions.shape[-1])
        with torch.no_grad():
            resized = part.interpolate_pos_encoding(tokens, image_size, image_size)  # type: ignore[operator]
        part.position_embeddings = nn.Parameter(resized.clone())
        part.image_size = patches.image_size = (image_size, image_size)
        patches.num_patches = edge * edge
        hf.config.image_size = image_size  # type: ignore[union-attr]


def _missing(config: Config, source: str, failure: object) -> DataMissing:
    place = "it"
    if not config.model_path:
        place = f"{source} from the hub or its cache in HF_HOME (TRAINER_MODEL_PATH names a folder instead)"
    return DataMissing(
        f"{config.model_setting}: cannot load {place}; use an image classification model in Hugging Face format "
        f"(config.json, *.safetensors): {failure} [SL-model-unloadable]"
    )


@contextmanager
def _refusing(config: Config, source: str) -> Iterator[None]:
    """Raise DataMissing for errors of network and disk, unknown architectures and models for other tasks."""
    try:
        yield
    except Exception as failure:
        raise _missing(config, source, failure) from failure


def _load(config: Config, source: str, settings: Any, whole: bool) -> Any:
    transformers.utils.logging.disable_progress_bar()  # it would fill the rank's log
    with _refusing(config, source):
        hf, found = AutoModelForImageClassification.from_pretrained(
            source,
            config=settings,
            ignore_mismatched_sizes=True,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    fresh = found["missing_keys"] | {key for key, *_ in found["mismatched_keys"]}
    heads = () if whole else tuple(f"{head}." for head in find_heads(hf))
    if lost := sorted(key for key in fresh if not key.startswith(heads)):
        raise _missing(
            config, source, f"{len(lost)} tensors are missing or have another shape, first {lost[0]}"
        )
    return hf.train()


def _forward_flops(model: HuggingFaceModel, image_size: int, channels: int) -> ForwardFlops:
    settings = model.hf.config
    if settings.model_type != "vit":
        return count_forward_flops(model, image_size, channels)
    shape = VitShape(
        hidden=settings.hidden_size,
        layers=settings.num_hidden_layers,
        heads=settings.num_attention_heads,
        mlp=settings.intermediate_size,
        patch=settings.patch_size,
        image=image_size,
    )
    return forward_flops(shape, image_size, settings.num_channels)
