"""The teacher of a run: where it lies, what it must have in common with the student. Without torch.

teacher      demo/large ─▶ <results>/demo/large/model     a finished run's exported weights
             /models/t  ─▶ that folder, or its model/ where it is a run's
             resnet, qwen2.5-3b, owner/name ─▶ published weights
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.failures import DataMissing
from trainer.settings.config import Config, ConfigError
from trainer.settings.fields import HUB_ID, MODELS
from trainer.settings.size_table import SIZES
from trainer.shapes.decoder_json import read_shape
from trainer.shapes.decoder_shapes import TEXT_HUB_IDS, parameter_shapes
from trainer.shapes.model_shapes import (
    HUB_IDS,
    PUBLISHED,
    TORCHVISION,
    default_image_size,
    image_size_problem,
    model_problems,
    read_model_json,
    registered_name,
)

IMAGENET_CLASSES = 1000


def teacher_config(config: Config) -> Config:
    """The settings under which the teacher of `config` is built: its own weights, nothing that only training has.

    Raises:
        ConfigError: there is no such teacher, or the run that is named has left no weights.
    """
    folder = _find_folder(config)
    return config.model_copy(
        update={
            "task": "text" if config.is_text else "image",
            "model": config.model if folder else config.teacher,
            "model_path": str(folder or ""),
            "init": "pretrained",
            "teacher": "",
            "normalization": "auto",
            "batch_norm": "local",
            "lora_rank": 0,
            "lora_targets": "",
            "activation_checkpointing": "none",
            "compile": False,
            "label_smoothing": 0.0,
            **dict.fromkeys(SIZES, 0),
        }
    )


def _said(config: Config) -> str:
    return f"TRAINER_TEACHER={config.teacher!r}"


def _find_folder(config: Config) -> Path | None:
    """None = a name or a hub id."""
    given = Path(config.teacher)
    for path in (Path(config.results) / given, given):  # an absolute path stays itself
        if (path / "model" / "config.json").is_file():
            return path / "model"
        content = _read(path / "config.json")
        if "resolved" in content:
            raise ConfigError(
                [
                    f"{_said(config)}: the run in {path} has left no weights; one leaves them at its end if it has a "
                    "checkpoint, as with TRAINER_CHECKPOINT_EVERY above 0"
                ]
            )
        if content:
            return path
    if config.teacher in MODELS or re.fullmatch(HUB_ID, config.teacher):
        return None
    published = ", ".join((*PUBLISHED, *TEXT_HUB_IDS))
    raise ConfigError(
        [
            f"{_said(config)}: no such folder, expected a finished run (<comparison>/<run> below TRAINER_RESULTS="
            f"{config.results!r}), a folder in Hugging Face format, one of {published}, or a hub id (owner/name)"
        ]
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def teacher_problems(config: Config, num_labels: int | None = None) -> list[str]:
    """One sentence per reason for which this teacher cannot teach this student.

    Args:
        num_labels: classes of the data set; None = not known, and not compared.
    """
    if not config.teacher or config.mode != "train":
        return []
    try:
        teacher = teacher_config(config)
        found = _own_problems(teacher)
        if not (found and config.is_text):  # whose shape may not be to be had
            found += _shared(config, teacher, num_labels)
        return [f"{_said(config)}: {problem}" for problem in found]
    except ConfigError as failure:
        return failure.problems
    except DataMissing as failure:
        return [f"{_said(config)}: {failure}"]


def _own_problems(teacher: Config) -> list[str]:
    problems = model_problems(teacher)
    if not teacher.is_text:
        size = image_size_problem(teacher, teacher.image_size or default_image_size(teacher))
        problems += [size] if size else []
    return problems


def _shared(config: Config, teacher: Config, num_labels: int | None) -> Iterator[str]:
    if config.is_text:
        words, known = read_shape(config).vocab, read_shape(teacher).vocab
        if words != known:
            yield f"has a vocabulary of {known} words, {config.model_name} has {words}; expected the same"
    elif num_labels is None or not _has_weights(teacher):
        return
    elif (known := read_classes(teacher)) != num_labels:
        yield f"tells {known} classes apart, the data set {config.dataset_name} has {num_labels}"


def _has_weights(teacher: Config) -> bool:
    name = registered_name(teacher)
    return bool(teacher.model_path) or not name or name in PUBLISHED


def read_classes(teacher: Config) -> int:
    """How many classes an image classifier with weights tells apart.

    Raises:
        DataMissing: the hub has no such model, nor its cache.
    """
    if registered_name(teacher) in TORCHVISION and not teacher.model_path:
        return IMAGENET_CLASSES
    content = read_model_json(teacher) if teacher.model_path else _fetch_json(teacher)
    names = content.get("class_names") or content.get("id2label")
    return len(names) if names else int(content.get("num_labels", 2))  # transformers' own, where nobody says


def _fetch_json(teacher: Config) -> dict[str, Any]:
    from huggingface_hub import hf_hub_download

    source = HUB_IDS.get(registered_name(teacher), teacher.model)
    try:
        return _read(Path(hf_hub_download(source, "config.json")))
    except Exception as failure:  # network, disk, no such model: all mean "not to be had"
        raise DataMissing(
            f"no such run or folder, and {source} is neither on the hub nor in its cache: {failure}"
        ) from failure


def count_teacher_bytes(config: Config) -> int:
    """Of a language model's teacher on a rank that holds it: weights of products in the products' type, others fp32.

    Raises:
        ConfigError, DataMissing: no such teacher.
    """
    if not config.teacher:
        return 0
    half = config.precision != "fp32"
    total = 0
    for name, size in parameter_shapes(read_shape(teacher_config(config))).items():
        is_product = len(size) > 1 and not name.endswith("mlp.gate.weight")
        total += math.prod(size) * (2 if half and is_product else 4)
    return total
