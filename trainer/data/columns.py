"""Which column holds the images and which the class: as asked for, else the data set's own."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.stored_pictures import StoredPictures
from trainer.settings.config import Config, ConfigError

# Tried in this order where the types leave a choice (CIFAR-100 has fine_label and coarse_label) or say nothing.
IMAGE_NAMES = ("image", "img")
LABEL_NAMES = ("label", "fine_label", "labels")
TEXT_NAMES = {"query", "response", "text", "prompt", "question", "answer", "instruction", "messages"}
SPLITS = ("train", "test", "validation", "val", "valid")
ONE_FOLDER_PER_CLASS = "put the images into one folder per class, two classes at least"


@dataclass(frozen=True)
class Columns:
    """Names of the two columns."""

    image: str
    label: str
    data: str
    """the setting that names the data set, for sentences"""

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
            [f"TRAINER_IMAGE_COLUMN={column!r}: holds {kind}, not images (PIL, bytes or paths)"]
        ) from failure
    return StoredPictures(cells.with_format(None), column, split, data)


def pick_columns(config: Config, table: Any, known: tuple[str, str] | None = None) -> Columns:
    """The columns that were asked for, else those known for this data set, else those of the right type.

    Raises:
        ConfigError: a column that is not there, or none or several that could be meant; names all columns.
    """
    import datasets

    image, label = known or ("", "")
    data = (
        f"TRAINER_DATASET_PATH={config.dataset_path!r}"
        if config.dataset_path
        else f"TRAINER_DATASET={config.dataset!r}"
    )
    if not (config.image_column or config.label_column or known) and (
        problem := _find_other_kind(table, config.dataset_path)
    ):
        raise ConfigError([f"{data}: {problem}"])
    problems: list[str] = []
    found = Columns(
        _pick("IMAGE", config.image_column or image, table, datasets.Image, IMAGE_NAMES, problems),
        _pick("LABEL", config.label_column or label, table, datasets.ClassLabel, LABEL_NAMES, problems),
        data,
    )
    if problems:
        raise ConfigError(problems)
    return found


def _find_other_kind(table: Any, path: str) -> str:
    """What a table is that no name of a column would mend; "" where one may."""
    if has_images_alone(table):
        return say_no_classes(path)
    names = set(table.column_names)
    if names & TEXT_NAMES and not names & set(IMAGE_NAMES) and not _image_columns(table):
        return (
            f"holds text (columns {', '.join(table.column_names)}), and this model learns images; a language model "
            "reads it: TRAINER_MODEL=qwen_tiny, or charts/llm-1d; where TRAINER_MODEL_PATH is one, TRAINER_TASK=text"
        )
    return ""


def say_no_classes(path: str) -> str:
    """Of images without labels: what to do, and which folder below `path` hides the classes.

    `datasets` gives no labels where files lie at several depths.
    """
    found = f"holds images and no classes; {ONE_FOLDER_PER_CLASS}"
    with suppress(OSError):
        splits = [each for each in _list_folders(Path(path)) if each.name in SPLITS] if path else []
        classes = [each for home in splits or [Path(path)] for each in _list_folders(home)] if path else []
        deeper = [inner for each in classes for inner in _list_folders(each)]
        if len(classes) > 1 and deeper:
            place = deeper[0].relative_to(path)
            return f"{found}, with no folder in it: {place} hides the classes of all"
    return found


def _list_folders(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_dir())


def has_images_alone(table: Any) -> bool:
    """Of a flat folder of images, and of one with a single class, `datasets` makes a table without labels."""
    return bool(table.column_names) and _image_columns(table) == list(table.column_names)


def _image_columns(table: Any) -> list[str]:
    import datasets

    return [name for name in table.column_names if isinstance(table.features[name], datasets.Image)]


def _pick(what: str, given: str, table: Any, kind: type, usual: tuple[str, ...], problems: list[str]) -> str:
    has = ", ".join(table.column_names)
    if given:
        if given not in table.column_names:
            problems.append(f"TRAINER_{what}_COLUMN={given!r}: the data set has the columns {has}")
        return given
    typed = [name for name in table.column_names if isinstance(table.features[name], kind)]
    if len(typed) == 1:
        return typed[0]
    named = [name for name in usual if name in (typed or table.column_names)]
    if named:
        return named[0]
    reason = f"{', '.join(typed)} could be meant" if typed else f"none is of type {kind.__name__}"
    problems.append(f"TRAINER_{what}_COLUMN: name one of the columns {has}; {reason}")
    return ""
