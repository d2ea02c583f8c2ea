"""Whether a teacher is one at all: of its student's kind, with weights. Without torch, and without the hub."""

from __future__ import annotations

from pathlib import Path

from trainer.settings.config import Config
from trainer.settings.fields import MODELS, TEXT_MODELS
from trainer.shapes.decoder_shapes import FAMILIES, TEXT_HUB_IDS
from trainer.shapes.model_shapes import PUBLISHED, read_model_json, registered_name
from trainer.shapes.teacher_place import expected_teachers


def kind_problem(config: Config, teacher: Config) -> str | None:
    """Why it cannot teach the model of `config`, whatever its numbers are; None = nothing of that kind shows.

    Args:
        teacher: the settings under which it is built.
    """
    return _folder_problem(config, teacher) if teacher.model_path else _name_problem(config, teacher)


def _name_problem(config: Config, teacher: Config) -> str | None:
    name = registered_name(teacher)
    if not name:  # of the hub
        return None
    if problem := _wrong_kind(config, name in TEXT_MODELS):
        return f"{problem}; expected {expected_teachers(config)} [SL-teacher-kind]"
    if name not in (*PUBLISHED, *TEXT_HUB_IDS):
        return (
            f"nobody has published weights of {name}; expected {expected_teachers(config)} "
            "[SL-teacher-unpublished]"
        )
    return None


def _folder_problem(config: Config, teacher: Config) -> str | None:
    folder, content = Path(teacher.model_path), read_model_json(teacher)
    family, ours = str(content.get("model_type", "")), registered_name(teacher)
    if not content:
        return (
            f"{folder} holds no readable config.json, expected a model in Hugging Face format "
            "[SL-teacher-json-absent]"
        )
    if ours and ours not in MODELS:
        return (
            f"the config.json of {folder} names the architecture {ours!r}, expected one of {', '.join(MODELS)} "
            "[SL-teacher-architecture]"
        )
    if problem := _wrong_kind(config, family in FAMILIES):
        found = f"the architecture {ours}" if ours else f"model_type {family!r}"
        allowed = f", expected model_type {' or '.join(FAMILIES)}" if config.is_text else ""
        return f"{problem}: {found} in {folder}/config.json{allowed} [SL-teacher-folder-kind]"
    if not list(folder.glob("*.safetensors")):
        return (
            f"{folder} holds no *.safetensors, which its weights are loaded from [SL-teacher-weights-absent]"
        )
    return None


def _wrong_kind(config: Config, is_text: bool) -> str:
    if is_text and not config.is_text:
        return f"is a language model, {config.model_name} takes images"
    if config.is_text and not is_text:
        return f"is no language model that is built here, {config.model_name} is one"
    return ""
