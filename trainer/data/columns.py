"""Find the image and label columns of a data set, and the class of every sample.

`pick_columns` uses the columns in the settings, else the data set's own. `read_labels` checks the classes and numbers
them by name, identically in all splits. `describe_classes` reports unusual classes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.model_specs import compose_accents
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.wording import name_first

# Tried in this order if the types are ambiguous (CIFAR-100 has fine_label and coarse_label) or unknown.
IMAGE_NAMES = ("image", "img")
LABEL_NAMES = ("label", "fine_label", "labels")
TEXT_NAMES = {"query", "response", "text", "prompt", "question", "answer", "instruction", "messages"}
NO_CLASSES = (
    "holds images without classes; add a column of labels, or put the images into one folder per class "
    "[SL-images-unlabelled]"
)


@dataclass(frozen=True)
class ColumnNames:
    """Names of the two columns."""

    image: str
    label: str
    data: str
    """the setting that names the data set, for messages"""
    label_given: bool = False
    """whether a setting names the label column"""


def pick_columns(config: Config, table: Any, known: Sequence[str] = (), data: str = "") -> ColumnNames:
    """Return the columns in the settings, else the known columns of this data set, else columns of the right type.

    Args:
        data: name of the data set in messages; "" = its setting.

    Raises:
        ConfigError: a column is absent, or no column or several columns match; the message names all columns.
        DataMissing: the data set holds only pictures.
    """
    import datasets

    image, label = known or ("", "")
    data, names = data or config.dataset_setting, list(table.column_names)
    if not (config.image_column or config.label_column or known):
        pictures = [name for name in names if isinstance(table.features[name], datasets.Image)]
        if names and pictures == names:
            raise DataMissing(f"{data}: {NO_CLASSES}")
        if TEXT_NAMES & {*names} and not pictures and not {*IMAGE_NAMES} & {*names}:
            raise ConfigError(
                f"{data}: holds text (columns {', '.join(names)}), but this model learns images; use a language "
                "model: TRAINER_MODEL=qwen_tiny or charts/llm-1d; if TRAINER_MODEL_PATH holds one, set "
                "TRAINER_TASK=text [SL-text-for-images]"
            )
    problems: list[str] = []
    found = ColumnNames(
        _pick("IMAGE", config.image_column or image, table, datasets.Image, IMAGE_NAMES, problems),
        _pick("LABEL", config.label_column or label, table, datasets.ClassLabel, LABEL_NAMES, problems),
        data,
        bool(config.label_column),
    )
    if problems:
        raise ConfigError(problems)
    return found


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
    if named := [name for name in usual if name in (typed or table.column_names)]:
        return named[0]
    encoded = [name for name in table.column_names if what == "IMAGE" and _holds_files(table.features[name])]
    if len(encoded) == 1 and not typed:
        return encoded[0]
    reason = (
        f"candidates: {', '.join(typed or encoded)}"
        if typed or encoded
        else f"none is of type {kind.__name__}"
    )
    problems.append(f"TRAINER_{what}_COLUMN: name one of the columns {has}; {reason} [SL-column-unclear]")
    return ""


def _holds_files(feature: Any) -> bool:
    """Return whether a column holds the bytes of files, as images in parquet files that `datasets` has not written."""
    return "bytes" in feature if isinstance(feature, dict) else "binary" in getattr(feature, "dtype", "")


MOST_NAMED = 10
CURE = "correct the label, or remove the sample"


class Labels(NamedTuple):
    """Names of the classes, and per split int64 [sample], indices into `names`."""

    names: list[str]
    codes: dict[str, NDArray[np.int64]]


def read_labels(splits: Mapping[str, Any], columns: ColumnNames) -> Labels:
    """Return the classes of all splits, numbered as in the train split.

    Args:
        splits: tables of `datasets` by their usual names, `train` included.

    Raises:
        ConfigError: the column in the setting does not hold classes.
        DataMissing: a sample has no class, or a class that the train split lacks; names split, sample and value.
    """
    problems = [*_find_missing(splits, columns)] or [*_find_other_kinds(splits, columns)]
    if problems:
        raise DataMissing(f"{columns.data}: {'; '.join(problems)}")
    named = {split: _name_values(table, columns.label) for split, table in splits.items()}
    feature = splits["train"].features[columns.label]
    # without names, sort by value: 10 comes after 9
    raw = {value.raw: value.name for value in named["train"] if not value.why}
    names = list(dict.fromkeys(_read_names(feature) or (raw[value] for value in sorted(raw))))
    for split, found in named.items():
        problems += _describe_wrong(split, columns.label, found, set(names))
    if problems:
        raise DataMissing(f"{columns.data}: {'; '.join(problems)}; {CURE}")
    code = {name: i for i, name in enumerate(names)}
    return Labels(
        names, {s: np.fromiter((code[v.name] for v in found), np.int64) for s, found in named.items()}
    )


def describe_classes(
    data: str, names: list[str], train: NDArray[np.int64], test: NDArray[np.int64]
) -> Iterator[str]:
    """Yield one line per unusual fact about the classes of a run."""
    for split, codes in (("training", train), ("test", test)):
        present = np.bincount(codes, minlength=len(names)) > 0
        if absent := [repr(name) for name, there in zip(names, present, strict=True) if not there]:
            yield f"{data}: classes without {split} pictures: {name_first(absent, MOST_NAMED)}"
    alike = Counter(name.strip().casefold() for name in names)
    if twins := [repr(name) for name in names if alike[name.strip().casefold()] > 1]:
        yield f"{data}: classes whose names differ only by case or blanks: {name_first(twins, MOST_NAMED)}"


class _Value(NamedTuple):
    """A label as stored in the table, its class, and the problem with its code ("" if it is valid)."""

    raw: Any
    name: str
    why: str = ""


def _find_missing(splits: Mapping[str, Any], columns: ColumnNames) -> Iterator[str]:
    for split, table in splits.items():
        for column, what in ((columns.image, "image"), (columns.label, "class")):
            if column not in table.column_names:
                has = ", ".join(table.column_names)
                yield (
                    f"split {split!r} has no column {column!r}, which holds the {what}; it has {has} "
                    "[SL-split-column-absent]"
                )


def _find_other_kinds(splits: Mapping[str, Any], columns: ColumnNames) -> Iterator[str]:
    import datasets

    for split, table in splits.items():
        kind = table.features[columns.label]
        if isinstance(kind, datasets.ClassLabel | datasets.Value):
            continue
        if columns.label_given:
            raise ConfigError(
                f"TRAINER_LABEL_COLUMN={columns.label!r}: holds {kind} in the split {split!r}, expected one class "
                "per sample [SL-label-column-kind]"
            )
        value = table.with_format(None)[0][columns.label]
        yield (
            f"split {split!r}: column {columns.label!r} holds {kind}, sample 0 is {value!r}; expected one class "
            "per sample [SL-label-kind]"
        )


def _name_values(table: Any, column: str) -> list[_Value]:
    names = _read_names(table.features[column])
    values = list(table.with_format(None)[column])
    judged = {value: _judge(value, names) for value in set(values)}
    return [judged[value] for value in values]


def _read_names(feature: Any) -> list[str] | None:
    """Return the names of a ClassLabel; None for another feature."""
    names = getattr(feature, "names", None)
    return [compose_accents(name) for name in names] if names else None


def _judge(value: Any, names: list[str] | None) -> _Value:
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    why = ""
    if value is None:
        why = "null [SL-label-null]"
    elif names is not None:
        why = "" if 0 <= value < len(names) else f"outside 0 to {len(names) - 1} [SL-label-code]"
    elif isinstance(number, float):
        why = "NaN [SL-label-nan]" if math.isnan(number) else "not a whole number [SL-label-fraction]"
    elif not isinstance(number, str | int):
        why = f"of type {type(value).__name__} [SL-label-type]"
    elif isinstance(number, int) and number < 0:
        why = "negative [SL-label-negative]"
    elif not str(number).strip():
        why = "empty [SL-label-empty]"
    if why:
        return _Value(number, "", why)
    return _Value(number, names[value] if names else compose_accents(str(number)))


def _describe_wrong(split: str, column: str, values: list[_Value], known: set[str]) -> Iterator[str]:
    """Yield one clause per reason: the first invalid sample and the count."""
    first: dict[str, tuple[int, Any]] = {}
    count: Counter[str] = Counter()
    for index, value in enumerate(values):
        why = value.why or (
            "" if value.name in known else "not a class of the split 'train' [SL-label-untrained]"
        )
        if why:
            first.setdefault(why, (index, value.raw))
            count[why] += 1
    for why, (index, raw) in first.items():
        said, _, code = why.rpartition(" ")
        more = f" ({count[why]} such samples)" if count[why] > 1 else ""
        yield f"split {split!r}: sample {index}: column {column!r} is {raw!r}, {said}{more} {code}"
