"""Questions and answers from the hub, a folder or a file in MetaMathQA's columns, split once and for all."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.images import SPLIT_SEED
from trainer.data.text.arithmetic import generate_arithmetic
from trainer.failures import DataMissing
from trainer.settings.config import Config, ConfigError
from trainer.settings.names_elsewhere import hint_of_dataset

HUB_IDS = {"metamathqa": "meta-math/MetaMathQA"}
QUERY, RESPONSE, ORIGINAL = "query", "response", "original_question"
TEST_FRACTION = 0.05
FILES = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Questions:
    """One split. `read` gives (queries, responses) of these indices into the split it was cut from."""

    read: Callable[[NDArray[np.int64]], tuple[list[Any], list[Any]]]
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)


def load_questions(config: Config, revision: str | None = None) -> dict[str, Questions]:
    """The splits train, validation and test of `dataset_path` or `dataset`.

    A split `test` (else `validation`) is the test split; without either, 5 % of the documents of `train` are held out.
    `validation` beside `test` is the validation split, else `validation_fraction` of `train` is held out. Questions
    with the same `original_question` are held out together: MetaMathQA asks each of its questions in many ways, and
    a model that was trained on one of them is not tested by another. At most `train_samples` are left to train on.

    Raises:
        ConfigError: columns that are not there or hold no text.
        DataMissing: no such data set, or a split without documents.
    """
    if is_built_in(config):
        tables: dict[str, Any] = {"train": generate_arithmetic()}
    else:
        tables = _open(config, revision)
        _check_columns(config, tables)
    train_name = "train" if "train" in tables else next(iter(tables))
    train = _whole(tables[train_name])
    given = {name: _whole(table) for name, table in tables.items() if name != train_name}
    test = given.get("test") or given.get("validation")
    groups = _groups(tables[train_name])
    if test is None:
        train, test = _hold_out(train, groups, round(len(groups) * TEST_FRACTION))
    validation = given.get("validation") if "test" in given else None
    if validation is None:
        train, validation = _hold_out(train, groups, round(len(train) * config.validation_fraction))
    if config.train_samples:
        train = Questions(train.read, train.indices[: config.train_samples])
    splits = dict(zip(SPLITS, (train, validation, test), strict=True))
    for name, split in splits.items():
        if not len(split):
            raise DataMissing(f"{named(config)}: no documents for the {name} split")
    return splits


def check_given(config: Config) -> None:
    """That the folder or file of `dataset_path` can be opened and has the columns; its documents are not read.

    Raises:
        ConfigError: columns that are not there or hold no text.
        DataMissing: no such data set.
    """
    _check_columns(config, _open(config, None))


def is_built_in(config: Config) -> bool:
    """Whether the documents are generated."""
    return not config.dataset_path and config.dataset == "arithmetic"


def hub_id(config: Config) -> str:
    """Id of the data set on the hub; meaningless with `dataset_path`."""
    return HUB_IDS.get(config.dataset, config.dataset)


def named(config: Config) -> str:
    """The setting that names the data set, for sentences."""
    if config.dataset_path:
        return f"TRAINER_DATASET_PATH={config.dataset_path!r}"
    return f"TRAINER_DATASET={config.dataset!r}"


def _open(config: Config, revision: str | None) -> dict[str, Any]:
    import datasets

    datasets.disable_progress_bars()
    path = Path(config.dataset_path)
    if config.dataset_path and not path.exists():
        raise DataMissing(f"{named(config)}: no such folder or file")
    try:
        if not config.dataset_path:
            source = datasets.load_dataset(hub_id(config), revision=revision)
        elif (path / "dataset_dict.json").exists() or (path / "state.json").exists():
            source = datasets.load_from_disk(str(path))
        elif path.is_file():
            source = datasets.load_dataset(FILES[path.suffix], data_files=str(path))
        else:
            source = datasets.load_dataset(str(path))
    except Exception as failure:  # a dozen classes of the hub's client and of the readers: "not to be had"
        if isinstance(failure, OSError) and failure.errno is not None:
            raise
        hint = "" if config.dataset_path else hint_of_dataset(config.dataset)
        raise DataMissing(
            f"{named(config)}: cannot be loaded, expected a data set in `datasets` format (saved with save_to_disk, "
            f"or json, jsonl or parquet files) or an id on the hub: {failure.__cause__ or failure}{hint}"
        ) from failure
    return dict(source) if isinstance(source, dict) else {"train": source}


def _check_columns(config: Config, tables: dict[str, Any]) -> None:
    problems = []
    for split, table in tables.items():
        features = table.features
        missing = [column for column in (QUERY, RESPONSE) if column not in features]
        if missing:
            problems.append(
                f"{named(config)}: split {split!r} has no column {' and no column '.join(missing)}; expected "
                f"MetaMathQA's columns {QUERY} and {RESPONSE}, found {', '.join(features) or 'none'}"
            )
            continue
        for column in (QUERY, RESPONSE):
            kind = getattr(features[column], "dtype", type(features[column]).__name__)
            if kind not in ("string", "large_string"):
                problems.append(
                    f"{named(config)}: split {split!r}: column {column} holds {kind}, expected string"
                )
    if problems:
        raise ConfigError(problems)


def _whole(table: Any) -> Questions:
    def read(indices: NDArray[np.int64]) -> tuple[list[Any], list[Any]]:
        if isinstance(table, list):
            rows = [table[i] for i in indices]
            return [row[QUERY] for row in rows], [row[RESPONSE] for row in rows]
        columns = table.select_columns([QUERY, RESPONSE])[indices.tolist()]
        return columns[QUERY], columns[RESPONSE]

    order = np.random.default_rng(SPLIT_SEED).permutation(len(table))
    return Questions(read, order.astype(np.int64))


def _groups(table: Any) -> NDArray[np.int64]:
    """For each document, the number of the question behind it."""
    if isinstance(table, list):
        originals: Sequence[Hashable] = [row[ORIGINAL] for row in table]
    elif ORIGINAL in table.features:
        originals = list(table[ORIGINAL])
    else:
        originals = list(table[QUERY])
    numbers: dict[Hashable, int] = {}
    return np.fromiter((numbers.setdefault(o, len(numbers)) for o in originals), np.int64, len(originals))


def _hold_out(whole: Questions, groups: NDArray[np.int64], wanted: int) -> tuple[Questions, Questions]:
    """(kept, held out): `wanted` documents, 1 or more, in whole groups; a group too large for the rest is kept."""
    mine = groups[whole.indices]
    sizes, room, chosen = np.bincount(mine), max(1, wanted), np.zeros(groups.max() + 1, bool)
    for group in mine:  # in the order of their first documents
        if not chosen[group] and sizes[group] <= room:
            chosen[group] = True
            room -= sizes[group]
        if not room:
            break
    held = chosen[mine]
    return Questions(whole.read, whole.indices[~held]), Questions(whole.read, whole.indices[held])


def describe_files(path: Path) -> list[list[Any]]:
    """[name, bytes, modification time in ns] of every file: another list means other data, without reading it."""
    if path.is_file():
        return [[path.name, path.stat().st_size, path.stat().st_mtime_ns]]
    found = []
    for parent, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            facts = os.stat(os.path.join(parent, name))
            found.append(
                [os.path.relpath(os.path.join(parent, name), path), facts.st_size, facts.st_mtime_ns]
            )
    return found
