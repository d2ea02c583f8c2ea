"""Which files hold a data set of text: those that are read, and what to do with others."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from trainer.failures import DataMissing

READERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}
READ = "a json, jsonl or parquet file"
TABLES = (".csv", ".tsv")
DATA = (*READERS, *TABLES, ".ndjson", ".arrow", ".xlsx", ".xls", ".feather", ".pickle", ".pkl")
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
OTHERS = ("config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")
"""What `datasets` takes for no data beside data."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
TO_UTF_8 = "convert it: iconv -f {} -t utf-8 FILE > NEW"
SPLIT = re.compile(
    r"(?<![a-z])(train|training|test|testing|eval|evaluation|validation|valid|val|dev)(?![a-z])", re.I
)
PART = re.compile(r"(.*-)(\d+)-of-(\d+)(\..*)")
MOST_NAMED = 3


def find_reader(named: str, file: Path) -> str:
    """What `datasets` calls the reader of one file.

    Raises:
        DataMissing: a file of another kind, or an empty one.
    """
    if problem := _find_problem(file):
        raise DataMissing(f"{named}: {problem}")
    return READERS[file.suffix]


def check_folder(named: str, folder: Path) -> None:
    """That every data file of a folder is of a kind that is read, in the split that its name says, and none is lacking.

    Raises:
        DataMissing: naming the first that is not, what is lacking, or what lies there instead of data.
    """
    files = [*_list_files(folder)]
    data = [file for file in files if _is_data(file)]
    for file in data:
        if problem := _find_problem(file) or (len(data) > 1 and _find_spelling(file.relative_to(folder))):
            raise DataMissing(f"{named}: {file.relative_to(folder)}: {problem}")
    if lacking := _find_lacking(data):
        raise DataMissing(f"{named}: lacks {_name(folder, lacking)}; put every part of the data set there")
    if files and not data:
        raise DataMissing(f"{named}: holds {_name(folder, files)}, expected {READ}; {_find_cure(files[0])}")


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
    unread = [f for f in _list_files(folder) if _is_data(f) and os.path.realpath(f) not in known]
    if unread and all(map(_is_data, read)) and not _tells_files(folder):
        raise DataMissing(
            f"{named}: {_name(folder, unread)} would not be read beside {_name(folder, sorted(read))}; expected "
            "files of one kind, and either all named after their split (train, validation, test) or none"
        )


def _tells_files(folder: Path) -> bool:
    """Whether a data card says which files make up which split."""
    card = folder / "README.md"
    return card.is_file() and "data_files:" in card.read_text(errors="replace")


def _list_files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        for name in sorted(names):
            if not name.startswith((".", "__")) and name not in OTHERS:
                yield Path(parent, name)


def _is_data(file: Path) -> bool:
    suffix = file.suffix.lower()
    return suffix in DATA or (suffix in PACKED and Path(file.stem).suffix.lower() in DATA)


def _find_problem(file: Path) -> str:
    """Why it is not read, and the cure; "" where it is."""
    if file.suffix not in READERS:
        return f"expected {READ}, found {file.suffix or 'a name without a suffix'}; {_find_cure(file)}"
    if not file.stat().st_size:
        return "is empty"
    with open(file, "rb") as opened:
        if opened.read(2) in UTF_16:
            return f"is written in UTF-16; {TO_UTF_8.format('utf-16')}"
    return ""


def _find_spelling(file: Path) -> str:
    """`datasets` knows splits by names in small letters, and takes Test.jsonl for a part of the training split."""
    for part in file.parts:
        if (found := SPLIT.search(part)) and found[1] != found[1].lower():
            return f"rename {part}: the name of a split is in small letters, {found[1].lower()}"
    return ""


def _find_lacking(files: Iterable[Path]) -> list[Path]:
    """Of files like train-00000-of-00002.parquet, those that are not there."""
    there = set(files)
    found = [(file, match) for file in there if (match := PART.fullmatch(file.name))]
    wanted = {
        file.with_name(f"{match[1]}{number:0{len(match[2])}}-of-{match[3]}{match[4]}")
        for file, match in found
        for number in range(int(match[3]))
    }
    return sorted(wanted - there)


def _find_cure(file: Path) -> str:
    suffix, new = file.suffix.lower(), f"{file.stem}.jsonl"
    if suffix in READERS:
        return f"rename it to {file.stem}{suffix}"
    if suffix in PACKED:
        return f"unpack it: gunzip {file.name}" if suffix == ".gz" else "unpack it"
    if suffix in TABLES:
        tab = r", sep='\t'" if suffix == ".tsv" else ""
        return (
            f"convert it: python -c \"import pandas; pandas.read_csv('{file.name}', dtype=str, "
            f"keep_default_na=False{tab}).to_json('{new}', orient='records', lines=True)\""
        )
    if suffix == ".ndjson":
        return f"rename it to {new}"
    return "each row holds one question and its answer: docs/text_data.md"


def _name(folder: Path, files: Iterable[Path]) -> str:
    listed = [os.path.relpath(file, folder) for file in files]
    more = len(listed) - MOST_NAMED
    return ", ".join(listed[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
