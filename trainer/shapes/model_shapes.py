"""What is known of a model without torch: published shapes, image sizes, and what the pre-flight check can refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.settings.config import Config
from trainer.settings.fields import MODELS, TEXT_MODELS
from trainer.settings.network_table import FINETUNED_NETWORKS, NETWORKS
from trainer.settings.recomputation import NONE
from trainer.shapes.decoder_rules import decoder_problems, no_folder, no_weights, unpublished
from trainer.shapes.preprocessing import read_image_size
from trainer.shapes.sizes import resize_vit, vit_size_problems


@dataclass(frozen=True)
class VitShape:
    """Shape of a vision transformer. Sizes from the ViT paper (arXiv 2010.11929), table 1; tiny is ours."""

    hidden: int
    layers: int
    heads: int
    mlp: int
    patch: int
    image: int


VIT = {
    "vit_tiny": VitShape(hidden=64, layers=4, heads=4, mlp=128, patch=4, image=32),
    "vit_small": VitShape(hidden=384, layers=12, heads=6, mlp=1536, patch=16, image=224),
    "vit_base": VitShape(hidden=768, layers=12, heads=12, mlp=3072, patch=16, image=224),
    "vit_large": VitShape(hidden=1024, layers=24, heads=16, mlp=4096, patch=16, image=224),
    "vit_huge": VitShape(hidden=1280, layers=32, heads=16, mlp=5120, patch=14, image=224),
}
TORCHVISION = tuple(name for name, row in NETWORKS.items() if not row.builder)
PUBLISHED_IMAGE = 224

HUB_IDS = {
    "vit_base": "google/vit-base-patch16-224",
    "vit_large": "google/vit-large-patch16-224",
    "vit_huge": "google/vit-huge-patch14-224-in21k",
}
"""Whose published weights init=pretrained loads."""
PUBLISHED = (*HUB_IDS, *TORCHVISION)


def read_model_json(config: Config) -> dict[str, Any]:
    """The content of config.json in `model_path`; empty where there is none, or none that can be read."""
    try:
        content = json.loads((Path(config.model_path) / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def registered_name(config: Config) -> str:
    """Which of our own architectures it is; "" = one that Hugging Face's library builds from a config.json."""
    if config.model_path:
        return str(read_model_json(config).get("stratlab_model", ""))
    name = FINETUNED_NETWORKS.get(config.model, config.model)
    return name if name in MODELS else ""


def read_vit_shape(config: Config) -> VitShape | None:
    """The preset of `model` with the sizes that are given; None = no vision transformer of ours."""
    name = registered_name(config)
    return resize_vit(VIT[name], config) if name in VIT else None


def default_image_size(config: Config) -> int:
    """Pixels of an edge that the model was published with; 224 where that is known on the hub only."""
    name = registered_name(config)
    if name in VIT:
        return VIT[name].image
    if config.model_path:
        if size := read_image_size(Path(config.model_path)):
            return size
        content = read_model_json(config)
        size = content.get("vision_config", content).get("image_size")
        size = size[0] if isinstance(size, list) and size else size
        return size if isinstance(size, int) and size > 0 else PUBLISHED_IMAGE
    return NETWORKS[name].image if name in NETWORKS else PUBLISHED_IMAGE


def image_size_problem(config: Config, image_size: int) -> str | None:
    """Why this model cannot take images of this size, or None."""
    name = registered_name(config)
    if name in TORCHVISION:
        smallest = NETWORKS[name].smallest
        if image_size >= smallest:
            return None
        return f"TRAINER_IMAGE_SIZE={image_size}: {name} needs {smallest} or more [SL-image-size-small]"
    step = _step(config, name)
    if image_size % step == 0 and image_size > 0:
        return None
    near = max(1, round(image_size / step)) * step
    label = name or config.model_name
    return (
        f"TRAINER_IMAGE_SIZE={image_size}: {label} needs a multiple of {step}, for example {near} "
        "[SL-image-size-step]"
    )


def _step(config: Config, name: str) -> int:
    if shape := read_vit_shape(config):
        return shape.patch
    if name in NETWORKS:
        return NETWORKS[name].step
    content = read_model_json(config) if config.model_path else {}
    patch = content.get("patch_size")
    return patch if content.get("model_type") == "vit" and isinstance(patch, int) and patch > 0 else 1


def model_problems(config: Config) -> list[str]:
    """One sentence per setting of the model that cannot work, as far as that shows without loading it."""
    if config.is_text:
        return decoder_problems(config)
    if config.model in TEXT_MODELS:
        return [
            (
                f"TRAINER_TASK='image', TRAINER_MODEL={config.model!r}: is a language model "
                "[SL-model-text-for-images]"
            )
        ]
    if problems := list(_folder_problems(config)):
        return problems
    shape = read_vit_shape(config)
    sizes = [*vit_size_problems(shape.hidden, shape.heads, config)] if shape else []
    return [*sizes, *_weights_problems(config), *_batch_norm_problems(config)]


def _folder_problems(config: Config) -> Iterator[str]:
    if not config.model_path:
        return
    named, folder = f"TRAINER_MODEL_PATH={config.model_path!r}", Path(config.model_path)
    if not folder.is_dir():
        yield no_folder(config)
    elif not read_model_json(config):
        yield (
            f"{named}: holds no readable config.json, expected a model in Hugging Face format "
            "[SL-model-json-absent]"
        )
    elif (name := registered_name(config)) and name not in MODELS:
        yield (
            f"{named}: its config.json names the architecture {name!r}, expected one of {', '.join(MODELS)} "
            "[SL-architecture-unknown]"
        )
    elif config.init == "pretrained" and not list(folder.glob("*.safetensors")):
        yield no_weights(named)


def _weights_problems(config: Config) -> Iterator[str]:
    name = registered_name(config)
    if config.init == "pretrained" and not config.model_path and name and name not in PUBLISHED:
        yield unpublished(name, PUBLISHED)


def nothing_to_adapt(name: str) -> str:
    """The sentence for a model that has nothing to adapt."""
    return (
        f"TRAINER_LORA_RANK: {name} has no linear or ungrouped convolution layer but its head "
        "[SL-lora-nothing]"
    )


def compiled_batch_norm(name: str, setting: str) -> str:
    """The sentence for recomputed batch norm, whose statistics torch.compile cannot be told to leave alone."""
    return (
        f"TRAINER_COMPILE=true, TRAINER_ACTIVATION_CHECKPOINTING={setting}: not both with {name}, which has batch norm "
        "(torch.compile takes no such recomputation) [SL-batch-norm-compiled]"
    )


def has_batch_norm(config: Config) -> bool:
    """Whether each sample's loss depends on the others of its micro-batch; not known of models from the hub."""
    name = registered_name(config)
    return name in TORCHVISION and name != "vgg"


def no_batch_norm(name: str) -> str:
    """The sentence for a model that has nothing to synchronise."""
    return f"TRAINER_BATCH_NORM=synchronised: {name} has no batch norm; leave it out [SL-batch-norm-absent]"


def count_batch_norm_samples(config: Config, processes: int) -> int | None:
    """Of how many samples a layer takes mean and variance while it trains; None without batch norm, and where that is
    not known.

    Args:
        processes: that have samples of their own.
    """
    if not has_batch_norm(config) and config.batch_norm == "local":
        return None
    return config.micro_batch_size * (processes if config.batch_norm == "synchronised" else 1)


def _batch_norm_problems(config: Config) -> Iterator[str]:
    name, recomputed = registered_name(config), config.activation_checkpointing
    if config.batch_norm == "synchronised" and name and not has_batch_norm(config):
        yield no_batch_norm(name)
    if has_batch_norm(config) and config.compile and recomputed != NONE:
        yield compiled_batch_norm(name, recomputed)


def lone_value_problem(config: Config, processes: int) -> str | None:
    """Why batch norm has nothing to take a deviation of, or None: one value per channel, once the image is 1 x 1.

    Args:
        processes: that have samples of their own.
    """
    name = registered_name(config)
    if config.is_text or config.mode == "evaluate" or not has_batch_norm(config):
        return None
    size, seen = config.image_size or default_image_size(config), count_batch_norm_samples(config, processes)
    if size != NETWORKS[name].smallest or seen != 1:
        return None
    shared = ", TRAINER_BATCH_NORM=synchronised" if processes > 1 else ""
    return (
        f"TRAINER_MICRO_BATCH_SIZE=1, TRAINER_IMAGE_SIZE={size}: the batch norm of {name} needs more than one value "
        f"per channel, so two samples{shared} or a larger image [SL-batch-norm-one-sample]"
    )
