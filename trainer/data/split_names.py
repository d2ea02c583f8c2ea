"""Which split is which, by the names that people give them, and what the codes of a file's classes mean there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.failures import DataMissing

USUAL = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


def usual_name(name: str) -> str:
    """train, validation or test; "" for a name that means none of them."""
    return next((usual for usual, names in USUAL.items() if name.lower() in names), "")


def choose_splits(tables: Mapping[str, Any], data: str) -> dict[str, Any]:
    """The tables that a run uses, as train, validation and test; a single table is the train split.

    Args:
        data: what the data set is called in sentences.

    Raises:
        DataMissing: several tables and none for training, two tables for one split, or a table without rows.
    """
    if len(tables) == 1:
        found = {"train": next(iter(tables.values()))}
    else:
        found = {}
        for name, table in tables.items():
            usual = usual_name(name)
            if usual in found and name != usual and usual not in tables:
                raise DataMissing(
                    f"{data}: two splits are called {usual}: {', '.join(tables)}; expected one [SL-split-twice]"
                )
            if usual and (name == usual or usual not in tables):
                found[usual] = table
    if "train" not in found:
        raise DataMissing(
            f"{data}: has no split train, which is learnt; found {', '.join(tables)} [SL-split-train-absent]"
        )
    if empty := [split for split, table in found.items() if not len(table)]:
        raise DataMissing(
            f"{data}: split {empty[0]!r} has no samples; remove it, or fill it [SL-split-empty]"
        )
    return found


def find_unused(tables: Mapping[str, Any], used: Mapping[str, Any]) -> list[str]:
    """Names of the tables that are none of the splits."""
    taken = {id(table) for table in used.values()}
    return [name for name, table in tables.items() if id(table) not in taken]


def find_split_folders(path: Path) -> dict[str, str] | None:
    """{split: pattern of its files} of a folder whose splits are called `Train` or `TEST`, which `datasets` does not
    read as splits; None where it needs no help."""
    folders = [each.name for each in sorted(path.iterdir()) if each.is_dir() and usual_name(each.name)]
    if all(name == name.lower() for name in folders):
        return None
    return {usual_name(name): f"{name}/**" for name in folders}


def load_with_own_names(path: Path, data: str) -> dict[str, Any]:
    """The tables of a folder of data files, each with its own files' names of classes.

    `datasets` gives all splits the names of the first file, whatever the others' codes mean.

    Raises:
        DataMissing: files of one split that give one code two names.
    """
    import datasets

    patterns = find_split_folders(path)
    source = datasets.load_dataset(str(path), data_files=patterns)
    files = datasets.load_dataset_builder(str(path), data_files=patterns).config.data_files or {}
    tables = dict(source)
    for split, table in source.items():
        mine = [str(file) for file in files.get(split, ()) if str(file).endswith(".parquet")]
        kinds = [_read_classes(file) for file in mine]
        if any(kind != kinds[0] for kind in kinds[1:]):
            other = next(file for file, kind in zip(mine, kinds, strict=True) if kind != kinds[0])
            raise DataMissing(
                f"{data}: split {split!r}: {mine[0]} and {other} number their classes differently; write them anew "
                "with one list of names [SL-split-classes-differ]"
            )
        if kinds and any(table.features[name] != kind for name, kind in kinds[0].items()):
            tables[split] = datasets.load_dataset("parquet", data_files={split: mine}, split=split)
    return tables


def _read_classes(file: str) -> dict[str, Any]:
    """Columns of a parquet file that hold classes by code, as the file itself says."""
    import datasets

    lazily = datasets.load_dataset("parquet", data_files=[file], split="train", streaming=True)
    return {
        name: kind for name, kind in (lazily.features or {}).items() if isinstance(kind, datasets.ClassLabel)
    }


def describe_unused(data: str, unused: list[str]) -> Iterator[str]:
    """One line where a run leaves tables out."""
    if unused:
        yield f"{data}: a run uses train, validation and test; not used: {', '.join(unused)}"
