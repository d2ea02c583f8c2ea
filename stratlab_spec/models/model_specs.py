"""What is known of an image model before it is built, without torch: its shape, its preprocessing, its classes.

`Preprocessing` says how stored pixels become what a model takes: resized, the middle cut out, normalised. The shapes of
vision transformers stand here, those of other networks in the registry. `model_problems` has what the pre-flight check
can refuse of any model. Names of the classes of weights, as their config.json has them, are held against those of a
data set. IMAGE_SIZES has the edge of images that each named network has where `image_size` is 0, for tools that may not
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
"""As transformers calls it, in a model's folder."""
PIL_NUMBERS = {"nearest": 0, "bilinear": 2, "bicubic": 3}
Interpolation = Literal["nearest", "bilinear", "bicubic"]


@dataclass(frozen=True)
class Preprocessing:
    """The defaults give -1 to 1 and the whole image: what networks that start from scratch are trained with.

    Attributes:
        mean: of each channel, or one for all, where a pixel goes from 0 to 1.
        std: what is divided by, likewise.
        image_size: pixels of an edge that the weights were trained with; 0 = not told.
        resize: edge before the middle is cut out of it; 0 = nothing is cut off. Scales with the size that
            a run asks for.
        interpolation: of the resizing, always with antialiasing.
        source: whose these numbers are.
    """

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    image_size: int = 0
    resize: int = 0
    interpolation: Interpolation = "bilinear"
    source: str = "the lab's own: -1 to 1"

    def resized_edge(self, image_size: int) -> int:
        """Pixels of an edge before the middle, `image_size`, is cut out."""
        if not self.resize or not self.image_size:
            return image_size
        return round(image_size * self.resize / self.image_size)

    def as_dict(self) -> dict[str, Any]:
        """For config.json."""
        return dataclasses.asdict(self)


PLAIN = Preprocessing()


def write_preprocessing(how: Preprocessing, image_size: int, folder: Path) -> None:
    """Writes it in transformers' format: `AutoImageProcessor.from_pretrained(folder)` makes the same pixels."""
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
    """Pixels of an edge that the processor of this folder gives its model; 0 where that is not told."""
    content = read_object(folder / FILE)
    size = content.get("crop_size") if content.get("do_center_crop") else content.get("size")
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    return size if isinstance(size, int) and size > 0 else 0


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


def read_object(path: Path) -> dict[str, Any]:
    """A file's JSON object; empty where there is none, or none that can be read."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_model_json(config: Config) -> dict[str, Any]:
    """The content of config.json in `model_path`; empty where there is none."""
    return read_object(Path(config.model_path) / "config.json")


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
    """One sentence per setting of the model that cannot work, as far as that shows without loading it."""
    if config.is_text:
        return decoder_problems(config)
    if config.model in TEXT_MODELS:
        named = f"TRAINER_TASK='image', TRAINER_MODEL={config.model!r}"
        return [f"{named}: is a language model [SL-model-text-for-images]"]
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


UNNAMED = re.compile(r"LABEL_\d+")
"""What transformers calls a class that has no name."""
MOST_NAMED = 5


def read_names(content: Mapping[str, Any]) -> list[str]:
    """In the order of the outputs; none where the file names none.

    Args:
        content: of a config.json, ours or transformers'.
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
    """For each wanted class its place among the known ones; None: they are not the same classes.

    Names that differ only by case, blanks, underscores or the writing of an accent are one name, unless that made two
    of a side equal. Where one side has no names, the caller compares their number: the order is kept.
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
    """How two lists of classes differ, for a sentence that begins with the weights."""
    if len(known) != len(wanted):
        return f"tells {len(known)} classes apart, the data set {data} has {len(wanted)}"
    here, there = (
        name_first([repr(name) for name in one if name not in other], MOST_NAMED)
        for one, other in ((known, wanted), (wanted, known))
    )
    return f"knows other classes than the data set {data}: {here} instead of {there}"


def hash_names(names: Sequence[str]) -> str:
    """Equal for the same names in the same order alone."""
    return hashlib.sha256("\0".join(names).encode()).hexdigest()


def compose_accents(name: str) -> str:
    """One writing of a name: macOS stores an accent as a character of its own, Linux does not."""
    return unicodedata.normalize("NFC", name)


def _simplify(name: str) -> str:
    return " ".join(compose_accents(name).replace("_", " ").split()).casefold()


IMAGE_SIZES = {
    **{name: shape.image for name, shape in VIT.items()},
    **{name: row.image for name, row in NETWORKS.items()},
    **{name: NETWORKS[body].image for name, body in FINETUNED_NETWORKS.items()},
}
