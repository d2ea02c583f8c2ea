"""Find the teacher of a run and check that it fits the student, without torch.

teacher      demo/large ─▶ <results>/demo/large/model     a finished run's exported weights
             /models/t  ─▶ that folder, or its model/ if it is a run's
             resnet, qwen2.5-3b, owner/name ─▶ published weights

`find_teacher_folder` searches the results and local folders. `teacher_problems` compares teacher and student. It
contacts the hub last, and only for values that local files lack.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.decoder import FAMILIES, parameter_shapes
from stratlab_spec.models.decoder_config import TEXT_HUB_IDS, read_shape
from stratlab_spec.models.decoder_json import text_part
from stratlab_spec.models.model_specs import (
    HUB_IDS,
    PUBLISHED,
    TORCHVISION,
    default_image_size,
    describe_other,
    image_size_problem,
    match_names,
    model_problems,
    read_model_json,
    read_names,
    read_object,
    registered_name,
)
from stratlab_spec.registry import SIZES
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.fields import HUB_ID, MODELS, TEXT_MODELS

HOW_WEIGHTS = (
    "a run exports weights at its end if it has a checkpoint, as with TRAINER_CHECKPOINT_EVERY above 0"
)
HUB_TRIES = 2
HUB_PAUSE_S = 1.0
NAMED_RUNS = 5
"""Largest number of a comparison's runs in a message."""


def said_teacher(config: Config) -> str:
    """Return the setting and its value, for errors."""
    return f"TRAINER_TEACHER={config.teacher!r}"


@contextmanager
def naming_the_teacher(config: Config) -> Iterator[None]:
    """Prefix errors from the teacher's files with TRAINER_TEACHER, because the user set only this setting."""
    try:
        yield
    except ConfigError as failure:
        raise ConfigError([f"{said_teacher(config)}: {problem}" for problem in failure.problems]) from None
    except DataMissing as failure:
        raise DataMissing(f"{said_teacher(config)}: {failure}") from failure


def expected_teachers(config: Config) -> str:
    """Return the allowed values of the setting, for errors."""
    published = ", ".join(TEXT_HUB_IDS if config.is_text else PUBLISHED)
    return (
        f"a finished run (<comparison>/<run> below TRAINER_RESULTS={config.results!r}), a folder in Hugging Face "
        f"format, one of {published}, or a hub id (owner/name)"
    )


def find_teacher_folder(config: Config) -> Path | None:
    """Return the folder of the teacher; None for a name or a hub id.

    Raises:
        ConfigError: it is not a folder, a name or a hub id; or it is a run without weights, or this run.
    """
    given, own = Path(config.teacher), Path(config.results) / config.comparison / config.run
    places = (Path(config.results) / given, given)  # an absolute path stays itself
    for path in places:
        if path.resolve() in (own.resolve(), (own / "model").resolve()):
            problem = "is this run itself; name another, finished run [SL-teacher-itself]"
            raise ConfigError(f"{said_teacher(config)}: {problem}")
        if (path / "model" / "config.json").is_file():
            return path / "model"
        content = read_object(path / "config.json")
        if "resolved" in content:
            raise ConfigError(f"{said_teacher(config)}: {_no_weights(path)}")
        if content:
            return path
    if config.teacher in MODELS:
        return None
    if problem := _lost_run(config):
        raise ConfigError(f"{said_teacher(config)}: {problem}")
    if re.fullmatch(HUB_ID, config.teacher):
        return None
    lacks = "the folder lacks config.json" if any(path.is_dir() for path in places) else "no such folder"
    raise ConfigError(
        f"{said_teacher(config)}: {lacks}; expected {expected_teachers(config)} [SL-teacher-absent]"
    )


def _no_weights(run: Path) -> str:
    return f"the run in {run} lacks exported weights; {HOW_WEIGHTS} [SL-teacher-run-no-weights]"


def _lost_run(config: Config) -> str:
    """Return why the value names a missing run of an existing comparison; "" if it may be a hub id."""
    comparison, _, run = config.teacher.partition("/")
    folder = Path(config.results) / comparison
    if Path(config.teacher).is_absolute() or not run or not folder.is_dir():
        return ""
    if (folder / run).is_dir():
        return _no_weights(folder / run)
    found = sorted(path.name for path in folder.iterdir() if path.is_dir())
    named = ", ".join(found[:NAMED_RUNS]) + (", ..." if len(found) > NAMED_RUNS else "")
    return (
        f"no such run below TRAINER_RESULTS={config.results!r}: comparison {comparison!r} there contains "
        f"{named or 'no run'}; the hub was not contacted, because a comparison has priority over an owner of its name "
        "[SL-teacher-run-absent]"
    )


def fetch_teacher_json(config: Config, source: str) -> dict[str, Any]:
    """Return the config.json of a hub id, from the hub or its cache.

    Raises:
        DataMissing: neither has it. Raised after HUB_TRIES tries; the hub's own client would retry for half a minute.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        if not isinstance(try_to_load_from_cache(source, "config.json"), str):
            _ask(source)
        return read_object(Path(hf_hub_download(source, "config.json")))
    except Exception as failure:  # errors of network, disk and hub mean that it is not available
        raise DataMissing(
            f"no such run below TRAINER_RESULTS={config.results!r}, no such folder, and {source} cannot be fetched "
            f"from the hub or its cache: {_first_line(failure)} [SL-teacher-unfetched]"
        ) from failure


def _ask(source: str) -> None:
    """Raise the hub's error if it does not provide the file; retry if the hub does not answer."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    if constants.HF_HUB_OFFLINE:
        raise ConnectionError("HF_HUB_OFFLINE is set, so the hub was not contacted")
    for left in reversed(range(HUB_TRIES)):
        try:
            get_hf_file_metadata(hf_hub_url(source, "config.json"))
            return
        except Exception as failure:
            answered = isinstance(failure, HfHubHTTPError) and failure.response.status_code < 500
            if answered or not left:
                raise
            time.sleep(HUB_PAUSE_S)


def _first_line(failure: Exception) -> str:
    return str(failure).strip().partition("\n")[0] or type(failure).__name__


def kind_problem(config: Config, teacher: Config) -> str | None:
    """Return why this kind of model cannot teach the model of `config`, or None; sizes are not compared.

    Args:
        teacher: the settings that build it.
    """
    ours, folder = registered_name(teacher), teacher.model_path
    if not folder:
        if not ours:  # a model of the hub
            return None
        if problem := _wrong_kind(config, ours in TEXT_MODELS):
            return f"{problem}; expected {expected_teachers(config)} [SL-teacher-kind]"
        if ours not in (*PUBLISHED, *TEXT_HUB_IDS):
            expected = expected_teachers(config)
            return f"{ours} lacks published weights; expected {expected} [SL-teacher-unpublished]"
        return None
    content = read_model_json(teacher)
    family = str(text_part(content).get("model_type", ""))
    if not content:
        wanted = "expected a model in Hugging Face format"
        return f"config.json in {folder} is missing or unreadable; {wanted} [SL-teacher-json-absent]"
    if ours and ours not in MODELS:
        known = ", ".join(MODELS)
        return (
            f"the config.json of {folder} names the architecture {ours!r}; expected one of {known} "
            "[SL-teacher-architecture]"
        )
    if problem := _wrong_kind(config, family in FAMILIES):
        found = f"the architecture {ours}" if ours else f"model_type {family!r}"
        allowed = f"; expected model_type {' or '.join(FAMILIES)}" if config.is_text else ""
        return f"{problem}: {found} in {folder}/config.json{allowed} [SL-teacher-folder-kind]"
    if not list(Path(folder).glob("*.safetensors")):
        return f"{folder} lacks *.safetensors, the files of its weights [SL-teacher-weights-absent]"
    return None


def _wrong_kind(config: Config, is_text: bool) -> str:
    if is_text and not config.is_text:
        return f"is a language model, but {config.model_name} takes images"
    if config.is_text and not is_text:
        return f"is not a supported language model, but {config.model_name} is a language model"
    return ""


IMAGENET_CLASSES = 1000
REPEATED_CHANNELS = 3
"""Channels of published weights; a single grey channel is repeated to fit them."""


def teacher_config(config: Config) -> Config:
    """Return the settings that build the teacher of `config`: its own weights, without settings of training.

    Raises:
        ConfigError: the teacher does not exist, or the named run lacks weights.
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
    """Return one sentence per reason why this teacher cannot teach this student.

    Args:
        class_names: of the data set, in any order; None = do not compare.
        channels: of its images; None = do not compare.
    """
    if not config.teacher or config.mode != "train":
        return []
    try:
        problems = _find_problems(config, class_names, channels)
    except ConfigError as failure:
        return failure.problems
    except DataMissing as failure:
        problems = [str(failure)]
    return [f"{said_teacher(config)}: {problem}" for problem in problems]


def _find_problems(config: Config, class_names: Sequence[str] | None, channels: int | None) -> list[str]:
    teacher = teacher_config(config)
    if problem := kind_problem(config, teacher):
        return [problem]
    if teacher.is_text:
        if "/" in teacher.model and not teacher.model_path:
            _fetch_json(teacher)  # fail early: the library's own download would retry for long
        if problems := model_problems(teacher):
            return problems
        words, known = read_shape(config).vocab, read_shape(teacher).vocab
        differ = f"has a vocabulary of {known} words, but {config.model_name} has {words}"
        return [] if words == known else [f"{differ}; expected the same number [SL-teacher-vocabulary]"]
    problems = model_problems(teacher)
    if size := image_size_problem(teacher, config.image_size or default_image_size(config)):
        problems.append(size)
    if class_names is not None:
        classes = read_classes(teacher)
        named = match_names([name for name in classes if name], class_names)
        if len(classes) != len(class_names) or named is None:
            problems.append(
                f"{describe_other(classes, class_names, config.dataset_name)} [SL-teacher-classes]"
            )
    if channels is not None:
        taken = read_channels(teacher)
        repeats = (
            channels == 1 and taken == REPEATED_CHANNELS and registered_name(teacher) in ("", *PUBLISHED)
        )
        if taken not in (None, channels) and not repeats:
            problems.append(
                f"was trained on images with {taken} channels, but images of {config.dataset_name} have {channels}; "
                "expected the same number [SL-teacher-channels]"
            )
    return problems


def read_channels(teacher: Config) -> int | None:
    """Return the channels of the images that a classifier with weights expects; None if its config.json lacks them.

    Raises:
        DataMissing: neither the hub nor its cache has the model.
    """
    if registered_name(teacher) in PUBLISHED and not teacher.model_path:
        return REPEATED_CHANNELS
    content = read_model_json(teacher) if teacher.model_path else _fetch_json(teacher)
    vision = content.get("vision_config", content)
    found = content.get("channels") if registered_name(teacher) else vision.get("num_channels")
    return found if isinstance(found, int) else None


def read_classes(teacher: Config) -> list[str]:
    """Return the classes of an image classifier with weights; each is "" if they lack names.

    Raises:
        DataMissing: neither the hub nor its cache has the model.
    """
    if registered_name(teacher) in TORCHVISION and not teacher.model_path:
        return [""] * IMAGENET_CLASSES
    content = read_model_json(teacher) if teacher.model_path else _fetch_json(teacher)
    unnamed = len(content.get("id2label") or {}) or int(
        content.get("num_labels", 2)
    )  # 2: transformers' default
    return read_names(content) or [""] * unnamed


def _fetch_json(teacher: Config) -> dict[str, Any]:
    return fetch_teacher_json(teacher, HUB_IDS.get(registered_name(teacher), teacher.model))


def count_teacher_bytes(config: Config) -> int:
    """Return the bytes of a language model's teacher on a rank that holds it.

    Weights of products have the products' type, others fp32.

    Raises:
        ConfigError, DataMissing: the teacher does not exist.
    """
    if not config.teacher:
        return 0
    product_bytes = 4 if config.precision == "fp32" else 2
    return sum(
        math.prod(size) * (product_bytes if len(size) > 1 and not name.endswith("mlp.gate.weight") else 4)
        for name, size in parameter_shapes(read_shape(teacher_config(config))).items()
    )
