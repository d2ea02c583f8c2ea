"""The teacher of a run: where it lies, what it must have in common with the student. Without torch.

teacher      demo/large ─▶ <results>/demo/large/model     a finished run's exported weights
             /models/t  ─▶ that folder, or its model/ where it is a run's
             resnet, qwen2.5-3b, owner/name ─▶ published weights
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from trainer.failures import DataMissing
from trainer.settings.config import Config, ConfigError
from trainer.settings.size_table import SIZES
from trainer.shapes.class_names import describe_other, match_names, read_names
from trainer.shapes.decoder_json import read_shape
from trainer.shapes.decoder_shapes import parameter_shapes
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
from trainer.shapes.teacher_kind import kind_problem
from trainer.shapes.teacher_place import fetch_teacher_json, find_teacher_folder, said_teacher

IMAGENET_CLASSES = 1000
REPEATED_CHANNELS = 3
"""Of published weights, for which one grey channel is repeated."""


def teacher_config(config: Config) -> Config:
    """The settings under which the teacher of `config` is built: its own weights, nothing that only training has.

    Raises:
        ConfigError: there is no such teacher, or the run that is named has left no weights.
    """
    folder = find_teacher_folder(config)
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


def teacher_problems(
    config: Config, class_names: Sequence[str] | None = None, channels: int | None = None
) -> list[str]:
    """One sentence per reason for which this teacher cannot teach this student.

    Args:
        class_names: of the data set; None = not known, and not compared. The same ones may have another order.
        channels: of its images, likewise.
    """
    if not config.teacher or config.mode != "train":
        return []
    try:
        return [
            f"{said_teacher(config)}: {problem}" for problem in _find_problems(config, class_names, channels)
        ]
    except ConfigError as failure:
        return failure.problems
    except DataMissing as failure:
        return [f"{said_teacher(config)}: {failure}"]


def _find_problems(config: Config, class_names: Sequence[str] | None, channels: int | None) -> list[str]:
    teacher = teacher_config(config)
    if problem := kind_problem(config, teacher):
        return [problem]
    if teacher.is_text:
        if "/" in teacher.model and not teacher.model_path:
            _fetch_json(teacher)  # before what reads it goes there and waits for long
        return model_problems(teacher) or [*_vocabulary_problems(config, teacher)]
    size = image_size_problem(teacher, config.image_size or default_image_size(config))
    return [
        *model_problems(teacher),
        *([size] if size else []),
        *([] if class_names is None else _class_problems(config, teacher, class_names)),
        *([] if channels is None else _channel_problems(config, teacher, channels)),
    ]


def _vocabulary_problems(config: Config, teacher: Config) -> Iterator[str]:
    words, known = read_shape(config).vocab, read_shape(teacher).vocab
    if words != known:
        yield (
            f"has a vocabulary of {known} words, {config.model_name} has {words}; expected the same "
            "[SL-teacher-vocabulary]"
        )


def _class_problems(config: Config, teacher: Config, class_names: Sequence[str]) -> Iterator[str]:
    known = read_classes(teacher)
    if len(known) != len(class_names) or match_names([name for name in known if name], class_names) is None:
        yield f"{describe_other(known, class_names, config.dataset_name)} [SL-teacher-classes]"


def _channel_problems(config: Config, teacher: Config, channels: int) -> Iterator[str]:
    taken = read_channels(teacher)
    repeats = channels == 1 and taken == REPEATED_CHANNELS and registered_name(teacher) in ("", *PUBLISHED)
    if taken not in (None, channels) and not repeats:
        yield (
            f"was trained on images of {taken} channels, those of {config.dataset_name} have {channels}; "
            "expected the same [SL-teacher-channels]"
        )


def read_channels(teacher: Config) -> int | None:
    """Of the images that an image classifier with weights takes; None = its config.json does not say.

    Raises:
        DataMissing: the hub has no such model, nor its cache.
    """
    if registered_name(teacher) in PUBLISHED and not teacher.model_path:
        return REPEATED_CHANNELS
    content = read_model_json(teacher) if teacher.model_path else _fetch_json(teacher)
    said = content.get("vision_config", content)
    found = content.get("channels") if registered_name(teacher) else said.get("num_channels")
    return found if isinstance(found, int) else None


def read_classes(teacher: Config) -> list[str]:
    """The classes that an image classifier with weights tells apart, each "" where they have no names.

    Raises:
        DataMissing: the hub has no such model, nor its cache.
    """
    if registered_name(teacher) in TORCHVISION and not teacher.model_path:
        return [""] * IMAGENET_CLASSES
    content = read_model_json(teacher) if teacher.model_path else _fetch_json(teacher)
    unnamed = len(content.get("id2label") or {}) or int(
        content.get("num_labels", 2)
    )  # transformers' own default
    return read_names(content) or [""] * unnamed


def _fetch_json(teacher: Config) -> dict[str, Any]:
    return fetch_teacher_json(teacher, HUB_IDS.get(registered_name(teacher), teacher.model))


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
