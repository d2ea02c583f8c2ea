"""Find the data files of a local data set of pictures or text, and the split of each file.

No data file is silently left out: `check_unread` reports files that `datasets` would ignore. `choose_splits` accepts
the usual names of splits in upper and lower case; `datasets` only accepts lower case.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.wording import name_first

TABLES = {".csv": ",", ".tsv": "\t"}
"""Suffix -> separator of the columns."""
READERS = {
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "json"),
    **dict.fromkeys(TABLES, "csv"),
    ".parquet": "parquet",
    ".arrow": "arrow",
}
"""Suffix -> reader of `datasets`."""
DATA = (*READERS, ".xlsx", ".xls", ".feather", ".pickle", ".pkl")
UNPACKED = (".gz", ".bz2", ".xz")
"""Compressed files that are read as they are."""
PACKED = (*UNPACKED, ".zst", ".zip")
OTHERS = ("config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")
"""Files in a data folder that `datasets` does not treat as data."""
HIDDEN = (".", "__")
MOST_FILES_NAMED = 3


def check_unread(named: str, folder: Path) -> None:
    """Raise if `datasets` would ignore a data file, because others have another kind or named splits.

    Folders of images are not checked: the other files belong to the images.

    Raises:
        DataMissing: names the files that would be ignored.
    """
    import datasets

    listed = datasets.load_dataset_builder(str(folder)).config.data_files or {}
    read = [Path(file) for files in listed.values() for file in files]
    known = {os.path.realpath(file) for file in read}
    unread = [f for f in list_files(folder) if is_data(f) and os.path.realpath(f) not in known]
    if unread and all(map(is_data, read)) and not _card_names_files(folder / "README.md"):
        raise DataMissing(
            f"{named}: {name_files(folder, unread)} would be ignored next to {name_files(folder, sorted(read))}; "
            "expected files of one kind, and either all named after their split (train, validation, test) or none "
            "[SL-data-files-unread]"
        )


def _card_names_files(card: Path) -> bool:
    """Return whether a data card assigns files to splits."""
    return card.is_file() and "data_files:" in card.read_text(errors="replace")


def walk_files(folder: Path, hidden: str | tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield every file, sorted within its folder.

    Args:
        hidden: prefixes of names of files and folders to skip.
    """
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(hidden))
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith(hidden))


def list_files(folder: Path) -> Iterator[Path]:
    """Yield every file that `datasets` considers, sorted within its folder."""
    return (file for file in walk_files(folder, HIDDEN) if file.name not in OTHERS)


def open_saved(folder: Path) -> dict[str, Any] | None:
    """Return the tables of a folder written by `save_to_disk`; None for another folder."""
    import datasets

    if not ((folder / "dataset_dict.json").exists() or (folder / "state.json").exists()):
        return None
    return as_tables(datasets.load_from_disk(str(folder)))


def as_tables(source: Any) -> dict[str, Any]:
    """Return an object opened by `datasets` as {split: table}; a single table is the train split."""
    return dict(source) if isinstance(source, dict) else {"train": source}


def is_data(file: Path) -> bool:
    """Return whether a file holds rows, compressed or not, in a supported or unsupported format."""
    suffix = file.suffix.lower()
    return suffix in DATA or (suffix in PACKED and Path(file.stem).suffix.lower() in DATA)


def name_files(folder: Path, files: Iterable[Path]) -> str:
    """Return the names of the first files, relative to `folder`."""
    return name_first([os.path.relpath(file, folder) for file in files], MOST_FILES_NAMED)


USUAL = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


def usual_name(name: str) -> str:
    """Return train, validation or test; "" for any other name."""
    return next((usual for usual, names in USUAL.items() if name.lower() in names), "")


def choose_splits(tables: Mapping[str, Any], data: str) -> dict[str, Any]:
    """Return the tables that a run uses, as train, validation and test; a single table is the train split.

    Args:
        data: name of the data set in messages.

    Raises:
        DataMissing: several tables without a train split, two tables for one split, or a table without rows.
    """
    if len(tables) == 1:
        found = {"train": next(iter(tables.values()))}
    else:
        found = {}
        for name, table in tables.items():
            usual = usual_name(name)
            if usual in found and name != usual and usual not in tables:
                raise DataMissing(
                    f"{data}: two splits are named {usual}: {', '.join(tables)}; expected one [SL-split-twice]"
                )
            if usual and (name == usual or usual not in tables):
                found[usual] = table
    if "train" not in found:
        raise DataMissing(
            f"{data}: has no split train to learn from; found {', '.join(tables)} [SL-split-train-absent]"
        )
    if empty := [split for split, table in found.items() if not len(table)]:
        raise DataMissing(
            f"{data}: split {empty[0]!r} has no samples; remove the split or add samples [SL-split-empty]"
        )
    return found


def describe_unused(data: str, tables: Mapping[str, Any], used: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line that names the tables that a run does not use, if any."""
    taken = {id(table) for table in used.values()}
    if unused := [name for name, table in tables.items() if id(table) not in taken]:
        yield f"{data}: a run uses train, validation and test; not used: {', '.join(unused)}"


def load_with_own_names(path: Path, data: str) -> dict[str, Any]:
    """Return the tables of a folder of data files, each with the class names of its own files.

    `datasets` gives all splits the names of the first file, even if the other files number their classes differently.

    Raises:
        DataMissing: files of one split give one code two names.
    """
    import datasets

    folders = [each.name for each in sorted(path.iterdir()) if each.is_dir() and usual_name(each.name)]
    patterns = None
    if any(name != name.lower() for name in folders):  # `datasets` does not read Train or TEST as splits
        patterns = {usual_name(name): f"{name}/**" for name in folders}
    source = datasets.load_dataset(str(path), data_files=patterns)
    files = datasets.load_dataset_builder(str(path), data_files=patterns).config.data_files or {}
    tables = dict(source)
    for split, table in source.items():
        mine = [str(file) for file in files.get(split, ()) if str(file).endswith(".parquet")]
        kinds = [_read_classes(file) for file in mine]
        if any(kind != kinds[0] for kind in kinds[1:]):
            other = next(file for file, kind in zip(mine, kinds, strict=True) if kind != kinds[0])
            raise DataMissing(
                f"{data}: split {split!r}: {mine[0]} and {other} number their classes differently; rewrite them "
                "with one list of names [SL-split-classes-differ]"
            )
        if kinds and any(table.features[name] != kind for name, kind in kinds[0].items()):
            tables[split] = datasets.load_dataset("parquet", data_files={split: mine}, split=split)
    return tables


def _read_classes(file: str) -> dict[str, Any]:
    """Return the columns of a parquet file that hold classes by code, as declared in the file."""
    import datasets

    lazily = datasets.load_dataset("parquet", data_files=[file], split="train", streaming=True)
    return {
        name: kind for name, kind in (lazily.features or {}).items() if isinstance(kind, datasets.ClassLabel)
    }
