"""Which column holds the images and which the class: as asked for, else the data set's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.data.stored_pictures import StoredPictures
from trainer.failures import DataMissing
from trainer.settings.config import Config, ConfigError

# Tried in this order where the types leave a choice (CIFAR-100 has fine_label and coarse_label) or say nothing.
IMAGE_NAMES = ("image", "img")
LABEL_NAMES = ("label", "fine_label", "labels")
TEXT_NAMES = {"query", "response", "text", "prompt", "question", "answer", "instruction", "messages"}
NO_CLASSES = (
    "holds images and no classes; add a column of labels, or put the images into one folder per class "
    "[SL-images-unlabelled]"
)


@dataclass(frozen=True)
class Columns:
    """Names of the two columns."""

    image: str
    label: str
    data: str
    """the setting that names the data set, for sentences"""
    label_given: bool = False
    """the label's was asked for"""

    def open_pictures(self, table: Any, split: str) -> StoredPictures:
        """The pictures of a split, not decoded: `datasets` would convert them to the mode that a column declares.

        Raises:
            ConfigError: the column holds something else.
        """
        return store_pictures(table, self.image, split, self.data)


def store_pictures(table: Any, column: str, split: str, data: str) -> StoredPictures:
    """The pictures in a column of a table.

    Args:
        split, data: what the split and the data set are called in sentences.

    Raises:
        ConfigError: the column holds something else.
    """
    import datasets

    try:
        cells = table.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    except Exception as failure:
        kind = table.features[column]
        raise ConfigError(
            [
                f"TRAINER_IMAGE_COLUMN={column!r}: holds {kind}, not images (PIL, bytes or paths) "
                "[SL-image-column-kind]"
            ]
        ) from failure
    return StoredPictures(cells.with_format(None), column, split, data)


def pick_columns(config: Config, table: Any, known: tuple[str, str] | None = None, data: str = "") -> Columns:
    """The columns that were asked for, else those known for this data set, else those of the right type.

    Args:
        data: what the data set is called in sentences; "" = by its setting.

    Raises:
        ConfigError: a column that is not there, or none or several that could be meant; names all columns.
        DataMissing: pictures without anything beside them.
    """
    import datasets

    image, label = known or ("", "")
    data = data or name_data(config)
    if not (config.image_column or config.label_column or known):
        if has_images_alone(table):
            raise DataMissing(f"{data}: {NO_CLASSES}")
        if problem := _find_text(table):
            raise ConfigError([f"{data}: {problem}"])
    problems: list[str] = []
    found = Columns(
        _pick("IMAGE", config.image_column or image, table, datasets.Image, IMAGE_NAMES, problems),
        _pick("LABEL", config.label_column or label, table, datasets.ClassLabel, LABEL_NAMES, problems),
        data,
        bool(config.label_column),
    )
    if problems:
        raise ConfigError(problems)
    return found


def name_data(config: Config) -> str:
    """The setting that names the data set, for sentences."""
    if config.dataset_path:
        return f"TRAINER_DATASET_PATH={config.dataset_path!r}"
    return f"TRAINER_DATASET={config.dataset!r}"


def _find_text(table: Any) -> str:
    """Of a table of text, who reads it; "" of another one."""
    names = set(table.column_names)
    if names & TEXT_NAMES and not names & set(IMAGE_NAMES) and not _image_columns(table):
        return (
            f"holds text (columns {', '.join(table.column_names)}), and this model learns images; a language model "
            "reads it: TRAINER_MODEL=qwen_tiny, or charts/llm-1d; where TRAINER_MODEL_PATH is one, TRAINER_TASK=text "
            "[SL-text-for-images]"
        )
    return ""


def has_images_alone(table: Any) -> bool:
    """Whether a table holds pictures and nothing else."""
    return bool(table.column_names) and _image_columns(table) == list(table.column_names)


def _image_columns(table: Any) -> list[str]:
    import datasets

    return [name for name in table.column_names if isinstance(table.features[name], datasets.Image)]


def _pick(what: str, given: str, table: Any, kind: type, usual: tuple[str, ...], problems: list[str]) -> str:
    has = ", ".join(table.column_names)
    if given:
        if given not in table.column_names:
            problems.append(
                f"TRAINER_{what}_COLUMN={given!r}: the data set has the columns {has} [SL-column-unknown]"
            )
        return given
    typed = [name for name in table.column_names if isinstance(table.features[name], kind)]
    if len(typed) == 1:
        return typed[0]
    named = [name for name in usual if name in (typed or table.column_names)]
    if named:
        return named[0]
    reason = f"{', '.join(typed)} could be meant" if typed else f"none is of type {kind.__name__}"
    problems.append(f"TRAINER_{what}_COLUMN: name one of the columns {has}; {reason} [SL-column-unclear]")
    return ""
