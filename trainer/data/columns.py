"""The two columns of a data set of images, and the class of every sample.

A column is the one that was asked for, else the data set's own. Classes are checked, and numbered by name in all splits
alike.
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

# Tried in this order where the types leave a choice (CIFAR-100 has fine_label and coarse_label) or say nothing.
IMAGE_NAMES = ("image", "img")
LABEL_NAMES = ("label", "fine_label", "labels")
TEXT_NAMES = {"query", "response", "text", "prompt", "question", "answer", "instruction", "messages"}
NO_CLASSES = (
    "holds images and no classes; add a column of labels, or put the images into one folder per class "
    "[SL-images-unlabelled]"
)


@dataclass(frozen=True)
class ColumnNames:
    """Names of the two columns."""

    image: str
    label: str
    data: str
    """the setting that names the data set, for sentences"""
    label_given: bool = False
    """the label's was asked for"""


def pick_columns(config: Config, table: Any, known: Sequence[str] = (), data: str = "") -> ColumnNames:
    """The columns that were asked for, else those known for this data set, else those of the right type.

    Args:
        data: what the data set is called in sentences; "" = by its setting.

    Raises:
        ConfigError: a column that is not there, or none or several that could be meant; names all columns.
        DataMissing: pictures without anything beside them.
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
                f"{data}: holds text (columns {', '.join(names)}), and this model learns images; a language model "
                "reads it: TRAINER_MODEL=qwen_tiny, or charts/llm-1d; where TRAINER_MODEL_PATH is one, "
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
    reason = f"{', '.join(typed)} could be meant" if typed else f"none is of type {kind.__name__}"
    problems.append(f"TRAINER_{what}_COLUMN: name one of the columns {has}; {reason} [SL-column-unclear]")
    return ""


MOST_NAMED = 10
CURE = "correct the label, or remove the sample"


class Labels(NamedTuple):
    """Names of the classes, and per split int64 [sample], places in `names`."""

    names: list[str]
    codes: dict[str, NDArray[np.int64]]


def read_labels(splits: Mapping[str, Any], columns: ColumnNames) -> Labels:
    """The classes of all splits, numbered as the train split numbers its own.

    Args:
        splits: tables of `datasets` by the usual names, `train` among them.

    Raises:
        ConfigError: the column that was asked for holds no classes.
        DataMissing: samples without a class, or whose class the train split does not have; names split, sample, value.
    """
    problems = [*_find_missing(splits, columns)] or [*_find_other_kinds(splits, columns)]
    if problems:
        raise DataMissing(f"{columns.data}: {'; '.join(problems)}")
    named = {split: _name_values(table, columns.label) for split, table in splits.items()}
    feature = splits["train"].features[columns.label]
    # without names, in the order of the values themselves: 10 comes behind 9
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
    """One line per thing that is odd about the classes of a run."""
    for split, codes in (("training", train), ("test", test)):
        present = np.bincount(codes, minlength=len(names)) > 0
        if absent := [repr(name) for name, there in zip(names, present, strict=True) if not there]:
            yield f"{data}: classes without {split} pictures: {name_first(absent, MOST_NAMED)}"
    alike = Counter(name.strip().casefold() for name in names)
    if twins := [repr(name) for name in names if alike[name.strip().casefold()] > 1]:
        yield f"{data}: classes whose names differ by case or blanks alone: {name_first(twins, MOST_NAMED)}"


class _Value(NamedTuple):
    """A label as it stands in the table, its class, and why it is none, with its code ("": it is one)."""

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
                "[SL-label-column-kind]"
            )
        value = table.with_format(None)[0][columns.label]
        yield (
            f"split {split!r}: column {columns.label!r} holds {kind}, sample 0 is {value!r}; expected one class "
            "[SL-label-kind]"
        )


def _name_values(table: Any, column: str) -> list[_Value]:
    names = _read_names(table.features[column])
    values = list(table.with_format(None)[column])
    judged = {value: _judge(value, names) for value in set(values)}
    return [judged[value] for value in values]


def _read_names(feature: Any) -> list[str] | None:
    """Those of a ClassLabel; None: another feature."""
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
        why = "NaN [SL-label-nan]" if math.isnan(number) else "no whole number [SL-label-fraction]"
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
    """One part of a sentence per reason: the first such sample, and how many there are."""
    first: dict[str, tuple[int, Any]] = {}
    count: Counter[str] = Counter()
    for index, value in enumerate(values):
        why = value.why or (
            "" if value.name in known else "no class of the split 'train' [SL-label-untrained]"
        )
        if why:
            first.setdefault(why, (index, value.raw))
            count[why] += 1
    for why, (index, raw) in first.items():
        said, _, code = why.rpartition(" ")
        more = f" ({count[why]} such samples)" if count[why] > 1 else ""
        yield f"split {split!r}: sample {index}: column {column!r} is {raw!r}, {said}{more} {code}"
