"""The class of every sample of the splits that a run uses: checked, and numbered by name in all of them alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.data.columns import Columns
from trainer.failures import DataMissing
from trainer.settings.config import ConfigError
from trainer.settings.spelling import name_first
from trainer.shapes.class_names import compose_accents

MOST_NAMED = 10
CURE = "correct the label, or remove the sample"


class Labels(NamedTuple):
    """Names of the classes, and per split int64 [sample], places in `names`."""

    names: list[str]
    codes: dict[str, NDArray[np.int64]]


def read_labels(splits: Mapping[str, Any], columns: Columns) -> Labels:
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
    names = list(dict.fromkeys(_read_names(feature) or _sort_names(named["train"])))
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


def _find_missing(splits: Mapping[str, Any], columns: Columns) -> Iterator[str]:
    for split, table in splits.items():
        for column, what in ((columns.image, "image"), (columns.label, "class")):
            if column not in table.column_names:
                has = ", ".join(table.column_names)
                yield (
                    f"split {split!r} has no column {column!r}, which holds the {what}; it has {has} "
                    "[SL-split-column-absent]"
                )


def _find_other_kinds(splits: Mapping[str, Any], columns: Columns) -> Iterator[str]:
    import datasets

    for split, table in splits.items():
        kind = table.features[columns.label]
        if isinstance(kind, datasets.ClassLabel | datasets.Value):
            continue
        if columns.label_given:
            raise ConfigError(
                [
                    f"TRAINER_LABEL_COLUMN={columns.label!r}: holds {kind} in the split {split!r}, expected one class "
                    "[SL-label-column-kind]"
                ]
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
    if value is None:
        return _Value(value, "", "null [SL-label-null]")
    if names is not None:
        if 0 <= value < len(names):
            return _Value(value, names[value])
        return _Value(value, "", f"outside 0 to {len(names) - 1} [SL-label-code]")
    if isinstance(value, float):
        if math.isnan(value):
            return _Value(value, "", "NaN [SL-label-nan]")
        if not value.is_integer():
            return _Value(value, "", "no whole number [SL-label-fraction]")
        value = int(value)
    if isinstance(value, int) and value < 0:
        return _Value(value, "", "negative [SL-label-negative]")
    if isinstance(value, str | int):
        if not str(value).strip():
            return _Value(value, "", "empty [SL-label-empty]")
        return _Value(value, compose_accents(str(value)))
    return _Value(value, "", f"of type {type(value).__name__} [SL-label-type]")


def _sort_names(values: list[_Value]) -> list[str]:
    """In the order of the values themselves: 10 comes behind 9."""
    raw = {value.raw: value.name for value in values if not value.why}
    return list(dict.fromkeys(raw[value] for value in sorted(raw)))


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
