"""Describe an image model before it is built, without torch: its shape, its preprocessing, its classes.

`Preprocessing` defines the steps from stored pixels to a model's input: resize, crop the centre, normalize. The shapes
of vision transformers are in this module, the shapes of other networks in the registry. `model_problems` checks the
settings of any model before the ranks start. `match_names` compares the classes in the weights' config.json with the
classes of a data set. IMAGE_SIZES maps each named network to its image edge for `image_size` 0, for tools that may not
import the trainer.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stratlab_spec.models.decoder_config import decoder_problems, no_folder, no_weights, unpublished
from stratlab_spec.models.decoder_json import resize_vit, vit_size_problems
from stratlab_spec.registry import FINETUNED_NETWORKS, NETWORKS
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.fields import MODELS, TEXT_MODELS
from stratlab_spec.settings.library_rules import NONE
from stratlab_spec.settings.wording import name_first

FILE = "preprocessor_config.json"
"""transformers' name of the file in a model's folder."""
PIL_NUMBERS = {"nearest": 0, "bilinear": 2, "bicubic": 3}
Interpolation = Literal["nearest", "bilinear", "bicubic"]


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of images; by default the whole image in a range of -1 to 1, as for networks from scratch.

    Attributes:
        mean: of each channel, or one for all channels, for pixels from 0 to 1.
        std: divisor of each channel, or one for all channels.
        image_size: edge in pixels of the images that the weights were trained with; 0 = unknown.
        resize: edge in pixels before the centre crop; 0 = do not crop. It scales with the image size of the run.
        interpolation: of the resizing, always with antialiasing.
        source: origin of these values.
    """

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    image_size: int = 0
    resize: int = 0
    interpolation: Interpolation = "bilinear"
    source: str = "the lab's own: -1 to 1"

    def resized_edge(self, image_size: int) -> int:
        """Return the edge in pixels before the centre crop to `image_size`."""
        if not self.resize or not self.image_size:
            return image_size
        return round(image_size * self.resize / self.image_size)

    def as_dict(self) -> dict[str, Any]:
        """Return the content for config.json."""
        return dataclasses.asdict(self)


PLAIN = Preprocessing()


def write_preprocessing(how: Preprocessing, image_size: int, folder: Path) -> None:
    """Write it in transformers' format: `AutoImageProcessor.from_pretrained(folder)` gives the same pixels."""
    edge = how.resized_edge(image_size)
    content = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": edge, "width": edge},
        "resample": PIL_NUMBERS[how.interpolation],
        "do_center_crop": edge != image_size,
        "crop_size": {"height": image_size, "width": image_size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(how.mean) if len(how.mean) > 1 else [*how.mean] * 3,
        "image_std": list(how.std) if len(how.std) > 1 else [*how.std] * 3,
    }
    (folder / FILE).write_text(json.dumps(content, indent=2) + "\n")


def read_image_size(folder: Path) -> int:
    """Return the edge in pixels of the images that the folder's processor produces; 0 if unknown."""
    content = read_object(folder / FILE)
    size = content.get("crop_size") if content.get("do_center_crop") else content.get("size")
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    return size if isinstance(size, int) and size > 0 else 0


@dataclass(frozen=True)
class VitShape:
    """Shape of a vision transformer. Sizes are from the ViT paper (arXiv 2010.11929, table 1), except tiny."""

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
"""Name -> hub id of the published weights that init=pretrained loads."""
PUBLISHED = (*HUB_IDS, *TORCHVISION)


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if the file is missing, unreadable or not an object."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_model_json(config: Config) -> dict[str, Any]:
    """Return the content of config.json in `model_path`; empty without a readable one."""
    return read_object(Path(config.model_path) / "config.json")


def registered_name(config: Config) -> str:
    """Return the name of a built-in architecture; "" if transformers builds the model from a config.json."""
    if config.model_path:
        return str(read_model_json(config).get("stratlab_model", ""))
    name = FINETUNED_NETWORKS.get(config.model, config.model)
    return name if name in MODELS else ""


def read_vit_shape(config: Config) -> VitShape | None:
    """Return the preset of `model` with the configured sizes; None if it is not a built-in vision transformer."""
    name = registered_name(config)
    return resize_vit(VIT[name], config) if name in VIT else None


def default_image_size(config: Config) -> int:
    """Return the edge in pixels of the model's images; 224 if only the hub knows it."""
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
    """Return why the model does not support images of this size, or None."""
    name = registered_name(config)
    if name in TORCHVISION:
        smallest = NETWORKS[name].smallest
        if image_size >= smallest:
            return None
        return f"TRAINER_IMAGE_SIZE={image_size}: {name} needs {smallest} or more [SL-image-size-small]"
    content = read_model_json(config) if config.model_path else {}
    step, patch = 1, content.get("patch_size")
    if shape := read_vit_shape(config):
        step = shape.patch
    elif name in NETWORKS:
        step = NETWORKS[name].step
    elif content.get("model_type") == "vit" and isinstance(patch, int) and patch > 0:
        step = patch
    if image_size % step == 0 and image_size > 0:
        return None
    near = max(1, round(image_size / step)) * step
    label = name or config.model_name
    wish = f"needs a multiple of {step}, for example {near}"
    return f"TRAINER_IMAGE_SIZE={image_size}: {label} {wish} [SL-image-size-step]"


def model_problems(config: Config) -> list[str]:
    """Return one sentence per unsupported setting of the model, without loading it."""
    if config.is_text:
        return decoder_problems(config)
    if config.model in TEXT_MODELS:
        named = f"TRAINER_TASK='image', TRAINER_MODEL={config.model!r}"
        return [
            f"{named}: is a language model; set TRAINER_TASK='text' or choose an image model [SL-model-text-for-images]"
        ]
    if problems := list(_folder_problems(config)):
        return problems
    name, recomputed, shape = registered_name(config), config.activation_checkpointing, read_vit_shape(config)
    if shape:
        problems += vit_size_problems(shape.hidden, shape.heads, config)
    if config.init == "pretrained" and not config.model_path and name and name not in PUBLISHED:
        problems.append(unpublished(name, PUBLISHED))
    if config.batch_norm == "synchronised" and name and not has_batch_norm(config):
        problems.append(no_batch_norm(name))
    if has_batch_norm(config) and config.compile and recomputed != NONE:
        problems.append(compiled_batch_norm(name, recomputed))
    return problems


def _folder_problems(config: Config) -> Iterator[str]:
    if not config.model_path:
        return
    named, folder = f"TRAINER_MODEL_PATH={config.model_path!r}", Path(config.model_path)
    if not folder.is_dir():
        yield no_folder(config)
    elif not read_model_json(config):
        yield (
            f"{named}: config.json is missing or unreadable; expected a model in Hugging Face format "
            "[SL-model-json-absent]"
        )
    elif (name := registered_name(config)) and name not in MODELS:
        yield (
            f"{named}: its config.json names the architecture {name!r}, expected one of {', '.join(MODELS)} "
            "[SL-architecture-unknown]"
        )
    elif config.init == "pretrained" and not list(folder.glob("*.safetensors")):
        yield no_weights(named)


def nothing_to_adapt(name: str) -> str:
    """Return the message for a model without layers that LoRA adapts."""
    return (
        f"TRAINER_LORA_RANK: {name} lacks linear and ungrouped convolution layers outside its head "
        "[SL-lora-nothing]"
    )


def compiled_batch_norm(name: str, setting: str) -> str:
    """Return the message for recomputed batch norm: torch.compile cannot freeze its statistics in the recomputation."""
    return (
        f"TRAINER_COMPILE=true, TRAINER_ACTIVATION_CHECKPOINTING={setting}: use only one of them with {name}, "
        "because torch.compile does not support recomputed batch norm [SL-batch-norm-compiled]"
    )


def has_batch_norm(config: Config) -> bool:
    """Return whether a sample's loss depends on the rest of its micro-batch; False for models from the hub."""
    name = registered_name(config)
    return name in TORCHVISION and name != "vgg"


def no_batch_norm(name: str) -> str:
    """Return the message for a model without batch norm to synchronise."""
    return (
        f"TRAINER_BATCH_NORM=synchronised: {name} lacks batch norm; remove the setting [SL-batch-norm-absent]"
    )


def count_batch_norm_samples(config: Config, processes: int) -> int | None:
    """Return the number of samples in a layer's training statistics; None without batch norm or if unknown.

    Args:
        processes: number of processes with different samples.
    """
    if not has_batch_norm(config) and config.batch_norm == "local":
        return None
    return config.micro_batch_size * (processes if config.batch_norm == "synchronised" else 1)


def lone_value_problem(config: Config, processes: int) -> str | None:
    """Return why batch norm has only one value per channel, as for one sample of 1 x 1 pixels; or None.

    Args:
        processes: number of processes with different samples.
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
        f"per channel; use two samples{shared} or a larger image [SL-batch-norm-one-sample]"
    )


UNNAMED = re.compile(r"LABEL_\d+")
"""transformers' name of a class without a name."""
MOST_NAMED = 5


def read_names(content: Mapping[str, Any]) -> list[str]:
    """Return the names of the classes in the order of the outputs; empty if the file lacks them.

    Args:
        content: of a config.json, from this project or transformers.
    """
    if names := content.get("class_names"):
        return [str(name) for name in names]
    by_code = content.get("id2label") or {}
    try:
        names = [str(by_code[code]) for code in sorted(by_code, key=int)]
    except (TypeError, ValueError):
        return []
    return [] if all(UNNAMED.fullmatch(name) for name in names) else names


def match_names(known: Sequence[str], wanted: Sequence[str]) -> list[int] | None:
    """Return the index in `known` of each class in `wanted`, or None if the classes differ.

    Names that differ only in case, blanks, underscores or the encoding of an accent count as equal, unless this makes
    two names of one list equal. If one list is empty, the order stays, and the caller compares the numbers.
    """
    if not known or not wanted:
        return list(range(len(wanted)))
    for form in (str, _simplify):
        places = {form(name): place for place, name in enumerate(known)}
        forms = [form(name) for name in wanted]
        if len(places) == len(known) == len(wanted) and places.keys() == set(forms):
            return [places[name] for name in forms]
    return None


def describe_other(known: Sequence[str], wanted: Sequence[str], data: str) -> str:
    """Return how two lists of classes differ, for a message that begins with the weights."""
    if len(known) != len(wanted):
        return f"distinguishes {len(known)} classes, but the data set {data} has {len(wanted)}"
    here, there = (
        name_first([repr(name) for name in one if name not in other], MOST_NAMED)
        for one, other in ((known, wanted), (wanted, known))
    )
    return f"knows other classes than the data set {data}: {here} instead of {there}"


def hash_names(names: Sequence[str]) -> str:
    """Return a hash that is equal only for the same names in the same order."""
    return hashlib.sha256("\0".join(names).encode()).hexdigest()


def compose_accents(name: str) -> str:
    """Return the composed form of a name: macOS stores an accent as a separate character, Linux does not."""
    return unicodedata.normalize("NFC", name)


def _simplify(name: str) -> str:
    return " ".join(compose_accents(name).replace("_", " ").split()).casefold()


IMAGE_SIZES = {
    **{name: shape.image for name, shape in VIT.items()},
    **{name: row.image for name, row in NETWORKS.items()},
    **{name: NETWORKS[body].image for name, body in FINETUNED_NETWORKS.items()},
}
