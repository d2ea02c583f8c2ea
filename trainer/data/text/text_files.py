"""Which files hold a data set of text: those that are read, and what to do with others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from trainer.data.data_files import PACKED, READERS, TABLES, is_data, list_files, name_files
from trainer.failures import DataMissing

READ = "a json, jsonl or parquet file"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
TO_UTF_8 = "convert it: iconv -f {} -t utf-8 FILE > NEW"
SPLIT = re.compile(
    r"(?<![a-z])(train|training|test|testing|eval|evaluation|validation|valid|val|dev)(?![a-z])", re.I
)
PART = re.compile(r"(.*-)(\d+)-of-(\d+)(\..*)")


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
    files = [*list_files(folder)]
    data = [file for file in files if is_data(file)]
    for file in data:
        if problem := _find_problem(file) or (len(data) > 1 and _find_spelling(file.relative_to(folder))):
            raise DataMissing(f"{named}: {file.relative_to(folder)}: {problem}")
    if lacking := _find_lacking(data):
        raise DataMissing(
            f"{named}: lacks {name_files(folder, lacking)}; put every part of the data set there "
            "[SL-data-parts-absent]"
        )
    if files and not data:
        raise DataMissing(
            f"{named}: holds {name_files(folder, files)}, expected {READ} [SL-folder-without-data]; "
            f"{_find_cure(files[0])}"
        )


def _find_problem(file: Path) -> str:
    """Why it is not read, and the cure; "" where it is."""
    if file.suffix not in READERS:
        found = file.suffix or "a name without a suffix"
        return f"expected {READ}, found {found} [SL-text-file-kind]; {_find_cure(file)}"
    if not file.stat().st_size:
        return "is empty [SL-text-file-empty]"
    with open(file, "rb") as opened:
        if opened.read(2) in UTF_16:
            return f"is written in UTF-16 [SL-text-file-utf-16]; {TO_UTF_8.format('utf-16')}"
    return ""


def _find_spelling(file: Path) -> str:
    """`datasets` knows splits by names in small letters, and takes Test.jsonl for a part of the training split."""
    for part in file.parts:
        if (found := SPLIT.search(part)) and found[1] != found[1].lower():
            return (
                f"rename {part}: the name of a split is in small letters, {found[1].lower()} "
                "[SL-split-name-case]"
            )
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
