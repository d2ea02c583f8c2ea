"""Which files of a folder hold data, and that none of them is left out in silence; of text and of pictures."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from trainer.failures import DataMissing
from trainer.settings.spelling import name_first

READERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}
TABLES = (".csv", ".tsv")
DATA = (*READERS, *TABLES, ".ndjson", ".arrow", ".xlsx", ".xls", ".feather", ".pickle", ".pkl")
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
OTHERS = ("config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")
"""What `datasets` takes for no data beside data."""
MOST_NAMED = 3


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
    if unread and all(map(is_data, read)) and not _tells_files(folder):
        raise DataMissing(
            f"{named}: {name_files(folder, unread)} would not be read beside {name_files(folder, sorted(read))}; "
            "expected files of one kind, and either all named after their split (train, validation, test) or none "
            "[SL-data-files-unread]"
        )


def _tells_files(folder: Path) -> bool:
    """Whether a data card says which files make up which split."""
    card = folder / "README.md"
    return card.is_file() and "data_files:" in card.read_text(errors="replace")


def list_files(folder: Path) -> Iterator[Path]:
    """Every file that `datasets` would look at, sorted within its folder."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        for name in sorted(names):
            if not name.startswith((".", "__")) and name not in OTHERS:
                yield Path(parent, name)


def is_data(file: Path) -> bool:
    """Whether a file holds rows, packed or not, in a form that is read or in another one."""
    suffix = file.suffix.lower()
    return suffix in DATA or (suffix in PACKED and Path(file.stem).suffix.lower() in DATA)


def name_files(folder: Path, files: Iterable[Path]) -> str:
    """The first of them, relative to `folder`."""
    return name_first([os.path.relpath(file, folder) for file in files], MOST_NAMED)
