"""Open the files of a local text data set, split by split, with every text unchanged.

`datasets` gives all splits the columns of the first one, and converts texts to dates if all texts of a part look like
dates. `open_local` avoids both. `check_folder` rejects unsupported files with a command that converts them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import ConfigError
from trainer.data.files import (
    PACKED,
    READERS,
    TABLES,
    check_unread,
    is_data,
    list_files,
    name_files,
    open_saved,
)

READ = "a json, jsonl or parquet file"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
TO_UTF_8 = "convert it: iconv -f {} -t utf-8 FILE > NEW"
SPLIT = re.compile(
    r"(?<![a-z])(train|training|test|testing|eval|evaluation|validation|valid|val|dev)(?![a-z])", re.I
)
PART = re.compile(r"(.*-)(\d+)-of-(\d+)(\..*)")


def check_folder(named: str, folder: Path) -> None:
    """Raise unless every data file has a supported kind and a readable split name, and no part is missing.

    Raises:
        DataMissing: names the first unsupported file, the missing parts, or the files that are not data.
    """
    files = [*list_files(folder)]
    data = [file for file in files if is_data(file)]
    for file in data:
        if problem := _find_problem(file) or (len(data) > 1 and _find_spelling(file.relative_to(folder))):
            raise DataMissing(f"{named}: {file.relative_to(folder)}: {problem}")
    if lacking := _find_lacking(data):
        raise DataMissing(
            f"{named}: lacks {name_files(folder, lacking)}; copy every part of the data set there "
            "[SL-data-parts-absent]"
        )
    if files and not data:
        raise DataMissing(
            f"{named}: holds {name_files(folder, files)}, expected {READ} [SL-folder-without-data]; "
            f"{_find_file_cure(files[0])}"
        )


def _find_problem(file: Path) -> str:
    """Return why the file cannot be read, with a fix; "" if it can be read."""
    if file.suffix not in READERS:
        found = file.suffix or "a name without a suffix"
        return f"expected {READ}, found {found} [SL-text-file-kind]; {_find_file_cure(file)}"
    if not file.stat().st_size:
        return "is empty [SL-text-file-empty]"
    with open(file, "rb") as opened:
        if opened.read(2) in UTF_16:
            return f"is written in UTF-16 [SL-text-file-utf-16]; {TO_UTF_8.format('utf-16')}"
    return ""


def _find_spelling(file: Path) -> str:
    """Return how to rename a split that is not in lower case; `datasets` reads Test.jsonl as training data."""
    for part in file.parts:
        if (found := SPLIT.search(part)) and found[1] != found[1].lower():
            return (
                f"rename {part}: the name of a split must be in lower case, {found[1].lower()} "
                "[SL-split-name-case]"
            )
    return ""


def _find_lacking(files: Iterable[Path]) -> list[Path]:
    """Return the missing parts of files such as train-00000-of-00002.parquet."""
    there = set(files)
    found = [(file, match) for file in there if (match := PART.fullmatch(file.name))]
    wanted = {
        file.with_name(f"{match[1]}{number:0{len(match[2])}}-of-{match[3]}{match[4]}")
        for file, match in found
        for number in range(int(match[3]))
    }
    return sorted(wanted - there)


def _find_file_cure(file: Path) -> str:
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
    return "each row must hold one question and its answer: docs/text_data.md"


QUERY, RESPONSE, ORIGINAL = "query", "response", "original_question"
DATE = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
"""The start of a text after it was converted to a date."""


def open_local(name: str, path: Path) -> dict[str, Any]:
    """Return {split: table of `datasets`} of a file, a folder of files, or a folder that `datasets` has saved.

    Args:
        name: name of the data set in messages.

    Raises:
        ConfigError: a json file holds one object instead of rows.
        DataMissing: files are unsupported, or their columns differ within a split.
        Exception: any error of `datasets`.
    """
    import datasets

    if (saved := open_saved(path)) is not None:
        return saved
    if path.is_file():
        if problem := _find_problem(path):
            raise DataMissing(f"{name}: {problem}")
        return {"train": _load_split(name, "train", [path])}
    check_folder(name, path)
    check_unread(name, path)
    listed = datasets.load_dataset_builder(str(path)).config.data_files or {}
    return {str(split): _load_split(name, str(split), [*map(Path, files)]) for split, files in listed.items()}


def describe_cast(failure: Exception) -> str:
    """Return how the columns of two files of one table differ; "" for another failure."""
    cause = failure.__cause__ or failure
    first, other = (getattr(cause, f"{which}_column_names", None) or [] for which in ("requested", "table"))
    if not (more := [name for name in other if name not in first]):
        return ""
    return (
        f"one file has the columns {', '.join(first)}, another file has {', '.join(more)}; "
        "give all files the same columns [SL-files-columns-differ]"
    )


def _load_split(name: str, split: str, files: Sequence[Path]) -> Any:
    import datasets

    reader = READERS[files[0].suffix]
    try:
        table = datasets.load_dataset(reader, data_files={split: [*map(str, files)]}, split=split)
    except Exception as failure:
        if said := describe_cast(failure):
            raise DataMissing(f"{name}: split {split!r}: {said}") from failure
        if reader != "json" or "timestamp" not in str(failure.__cause__):
            raise
        return _read_texts(files)
    if reader != "json":
        return table
    if len(table) == 1 and (cure := _find_cure(files[0], table.features)):
        raise ConfigError(
            f"{name}: split {split!r}: {files[0].name} holds one object, expected one row per question "
            f"[SL-json-one-object]; convert it, then remove it: {cure}"
        )
    return _read_texts(files) if _has_dates(table) else table


def _find_cure(file: Path, features: Any) -> str:
    """Return the command that turns an object of columns, or of lists of rows, into rows; "" for another object."""
    import datasets

    read = f"json.load(open('{file.name}', encoding='utf-8-sig'))"
    write = "orient='records', lines=True"
    if all(isinstance(features.get(column), dict | datasets.List) for column in (QUERY, RESPONSE)):
        columns = f"pandas.DataFrame({read})[['{QUERY}', '{RESPONSE}']]"
        return f"python -c \"import json, pandas; {columns}.to_json('{file.stem}.jsonl', {write})\""
    fields = [
        name
        for name, kind in features.items()
        if isinstance(kind, datasets.List) and isinstance(kind.feature, dict) and QUERY in kind.feature
    ]
    if not fields:
        return ""
    each = f"[pandas.DataFrame(found[name]).to_json(name + '.jsonl', {write}) for name in {fields}]"
    return f'python -c "import json, pandas; found = {read}; {each}"'


def _has_dates(table: Any) -> bool:
    for column in {QUERY, RESPONSE} & {*table.features}:
        kind = getattr(table.features[column], "dtype", "")
        if kind.startswith("timestamp"):
            return True
        for chunk in table.data.column(column).chunks if kind == "string" else ():
            if any(text and DATE.match(text) for text in chunk.cast("binary").to_pylist()):
                return True
    return False


def _read_texts(files: Sequence[Path]) -> Any:
    """Return the training columns as written in json files; of other columns only the names."""
    import datasets

    rows = [row for file in files for row in _read_rows(file)]
    names = dict.fromkeys(name for row in rows for name in row)
    kept = (QUERY, RESPONSE, ORIGINAL)
    return datasets.Dataset.from_dict(
        {name: [row.get(name) if name in kept else None for row in rows] for name in names}
    )


def _read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of an array, or of consecutive objects."""
    text = file.read_text(encoding="utf-8-sig").strip()
    if text.startswith("["):
        found: list[dict[str, Any]] = json.loads(text)
        return found
    rows, decoder, place = [], json.JSONDecoder(), 0
    while place < len(text):
        row, place = decoder.raw_decode(text, place)
        rows.append(row)
        while text[place : place + 1].isspace():
            place += 1
    return rows
