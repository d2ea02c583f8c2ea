"""The files of a local data set, of pictures or text: which hold data, and which split they make up.

None is left out in silence. A split is known by the usual names for it, in any case; `datasets` knows those in small
letters.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.wording import name_first

READERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}
TABLES = (".csv", ".tsv")
DATA = (*READERS, *TABLES, ".ndjson", ".arrow", ".xlsx", ".xls", ".feather", ".pickle", ".pkl")
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
OTHERS = ("config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")
"""What `datasets` takes for no data beside data."""
HIDDEN = (".", "__")
MOST_FILES_NAMED = 3


def check_unread(named: str, folder: Path) -> None:
    """That none of its data files is left out, as `datasets` does beside files of another kind or of named splits.

    A folder of images is not looked at: what lies beside them is theirs.

    Raises:
        DataMissing: naming those that are not.
    """
    import datasets

    listed = datasets.load_dataset_builder(str(folder)).config.data_files or {}
    read = [Path(file) for files in listed.values() for file in files]
    known = {os.path.realpath(file) for file in read}
    unread = [f for f in list_files(folder) if is_data(f) and os.path.realpath(f) not in known]
    if unread and all(map(is_data, read)) and not _card_names_files(folder / "README.md"):
        raise DataMissing(
            f"{named}: {name_files(folder, unread)} would not be read beside {name_files(folder, sorted(read))}; "
            "expected files of one kind, and either all named after their split (train, validation, test) or none "
            "[SL-data-files-unread]"
        )


def _card_names_files(card: Path) -> bool:
    """Whether a data card says which files make up which split."""
    return card.is_file() and "data_files:" in card.read_text(errors="replace")


def walk_files(folder: Path, hidden: str | tuple[str, ...] = ()) -> Iterator[Path]:
    """Every file, sorted within its folder.

    Args:
        hidden: beginnings of the names of files and folders that are left out.
    """
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(hidden))
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith(hidden))


def list_files(folder: Path) -> Iterator[Path]:
    """Every file that `datasets` would look at, sorted within its folder."""
    return (file for file in walk_files(folder, HIDDEN) if file.name not in OTHERS)


def open_saved(folder: Path) -> dict[str, Any] | None:
    """The tables of a folder that `datasets` has saved; None: it is another one."""
    import datasets

    if not ((folder / "dataset_dict.json").exists() or (folder / "state.json").exists()):
        return None
    return as_tables(datasets.load_from_disk(str(folder)))


def as_tables(source: Any) -> dict[str, Any]:
    """What `datasets` has opened as {split: table}; a table alone is the train split."""
    return dict(source) if isinstance(source, dict) else {"train": source}


def is_data(file: Path) -> bool:
    """Whether a file holds rows, packed or not, in a form that is read or in another one."""
    suffix = file.suffix.lower()
    return suffix in DATA or (suffix in PACKED and Path(file.stem).suffix.lower() in DATA)


def name_files(folder: Path, files: Iterable[Path]) -> str:
    """The first of them, relative to `folder`."""
    return name_first([os.path.relpath(file, folder) for file in files], MOST_FILES_NAMED)


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


def describe_unused(data: str, tables: Mapping[str, Any], used: Mapping[str, Any]) -> Iterator[str]:
    """One line where a run leaves tables out: those that are none of the splits."""
    taken = {id(table) for table in used.values()}
    if unused := [name for name, table in tables.items() if id(table) not in taken]:
        yield f"{data}: a run uses train, validation and test; not used: {', '.join(unused)}"


def load_with_own_names(path: Path, data: str) -> dict[str, Any]:
    """The tables of a folder of data files, each with its own files' names of classes.

    `datasets` gives all splits the names of the first file, whatever the others' codes mean.

    Raises:
        DataMissing: files of one split that give one code two names.
    """
    import datasets

    folders = [each.name for each in sorted(path.iterdir()) if each.is_dir() and usual_name(each.name)]
    patterns = None
    if any(name != name.lower() for name in folders):  # Train, TEST: `datasets` does not read them as splits
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
