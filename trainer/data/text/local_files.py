"""Open the files of a local text data set, split by split, with every text unchanged.

`datasets` gives all splits the columns of the first one, converts texts of json files to dates if all texts of a part
look like dates, and guesses the type of each csv column. `open_local` avoids all three. `check_folder` rejects
unsupported files with a command that converts them.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config, ConfigError
from trainer.data.files import (
    PACKED,
    READERS,
    TABLES,
    UNPACKED,
    check_unread,
    is_data,
    list_files,
    name_files,
    open_saved,
)
from trainer.data.text.text_form import ORIGINAL, find_columns, is_turn

READ = "a json, jsonl, csv, tsv, parquet, arrow or txt file, or one of them as .gz, .bz2 or .xz"
PLAIN = ".txt"
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
    data = [file for file in files if is_data(file)] or [file for file in files if _suffix(file) == PLAIN]
    for file in data:
        if problem := _find_problem(file) or (len(data) > 1 and _find_spelling(file.relative_to(folder))):
            raise DataMissing(f"{named}: {file.relative_to(folder)}: {problem}")
    if others := [file for file in data[1:] if _find_reader(file) != _find_reader(data[0])]:
        raise DataMissing(
            f"{named}: holds {name_files(folder, [data[0], others[0]])}; expected files of one kind "
            "[SL-text-kinds-mixed]; move the others away, or convert them"
        )
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


def _suffix(file: Path) -> str:
    """Return the suffix that names the content of a file, compressed or not."""
    return Path(file.stem).suffix if file.suffix in UNPACKED else file.suffix


def _find_reader(file: Path) -> str:
    """Return the reader of `datasets` for a file; "" without one."""
    return {**READERS, PLAIN: "text"}.get(_suffix(file), "")


def _find_problem(file: Path) -> str:
    """Return why the file cannot be read, with a fix; "" if it can be read."""
    if not _find_reader(file):
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
    if (lower := file.with_name(file.name.lower())) != file and _find_reader(lower):
        return f"rename it to {lower.name}"
    if file.suffix.lower() in PACKED:
        return "unpack it"
    return "each row must hold one text, one chat, or one question and its answer: docs/text_data.md"


DATE = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
"""The start of a text after it was converted to a date."""


def open_local(config: Config, path: Path) -> dict[str, Any]:
    """Return {split: table of `datasets`} of a file, a folder of files, or a folder that `datasets` has saved.

    Raises:
        ConfigError: a json file holds one object instead of rows.
        DataMissing: files are unsupported, or their columns differ within a split.
        Exception: any error of `datasets`.
    """
    import datasets

    name = config.dataset_setting
    if (saved := open_saved(path)) is not None:
        return saved
    if path.is_file():
        if problem := _find_problem(path):
            raise DataMissing(f"{name}: {problem}")
        return {"train": _load_split(config, "train", [path])}
    check_folder(name, path)
    check_unread(name, path)
    listed = datasets.load_dataset_builder(str(path)).config.data_files or {}
    return {
        str(split): _load_split(config, str(split), [*map(Path, files)]) for split, files in listed.items()
    }


def describe_cast(failure: Exception) -> str:
    """Return how the columns of two files of one table differ; "" for another failure."""
    cause = failure.__cause__ or failure
    first, other = (getattr(cause, f"{which}_column_names", None) or [] for which in ("requested", "table"))
    return _describe_difference(first, other)


def _describe_difference(first: Sequence[str], other: Sequence[str]) -> str:
    if not (more := [name for name in other if name not in first]):
        return ""
    return (
        f"one file has the columns {', '.join(first)}, another file has {', '.join(more)}; "
        "give all files the same columns [SL-files-columns-differ]"
    )


def _load_split(config: Config, split: str, files: Sequence[Path]) -> Any:
    import datasets

    name, reader = config.dataset_setting, _find_reader(files[0])
    options: dict[str, Any] = {"encoding": "utf-8-sig"} if reader == "text" else {}
    if reader == "csv":
        options, said = _read_header(files)
        if said:
            raise DataMissing(f"{name}: split {split!r}: {said}")
    try:
        table = datasets.load_dataset(reader, data_files={split: [*map(str, files)]}, split=split, **options)
    except Exception as failure:
        if said := describe_cast(failure):
            raise DataMissing(f"{name}: split {split!r}: {said}") from failure
        if reader != "json" or "timestamp" not in str(failure.__cause__):
            raise
        return _read_texts(config, files)
    if reader != "json":
        return table
    if len(table) == 1 and (cure := _find_cure(files[0], table.features)):
        raise ConfigError(
            f"{name}: split {split!r}: {files[0].name} holds one object, expected one row per text "
            f"[SL-json-one-object]; convert it, then remove it: {cure}"
        )
    return _read_texts(config, files) if _has_dates(config, table) else table


def _read_header(files: Sequence[Path]) -> tuple[dict[str, Any], str]:
    """Return the options of the reader, so that every column of csv files is text, and how the columns differ."""
    import datasets

    separator = TABLES[_suffix(files[0])]
    headers = []
    for file in files:
        with _open_text(file) as opened:
            if separator == ",":
                separator = max((",", ";", "\t"), key=opened.readline().count)
                opened.seek(0)
            headers.append(next(csv.reader(opened, delimiter=separator)))
    columns = datasets.Features({column: datasets.Value("string") for column in headers[0]})
    options = {"sep": separator, "encoding": "utf-8-sig", "keep_default_na": False, "features": columns}
    said = [_describe_difference(headers[0], other) for other in headers]
    return options, next(filter(None, said), "")


def _find_cure(file: Path, features: Any) -> str:
    """Return the command that turns an object of columns, or of lists of rows, into rows; "" for another object."""
    import datasets

    read = f"json.load(open('{file.name}', encoding='utf-8-sig'))"
    write = "orient='records', lines=True"
    rows = [
        name
        for name, kind in features.items()
        if isinstance(kind, datasets.List) and isinstance(kind.feature, dict) and not is_turn(kind.feature)
    ]
    if rows:
        each = f"[pandas.DataFrame(found[name]).to_json(name + '.jsonl', {write}) for name in {rows}]"
        return f'python -c "import json, pandas; found = {read}; {each}"'
    columns = [
        name
        for name, kind in features.items()
        if isinstance(kind, dict | datasets.List) and not is_turn(getattr(kind, "feature", None))
    ]
    if len(columns) < 2:
        return ""
    return (
        f'python -c "import json, pandas; pandas.DataFrame({read})[{columns}]'
        f".to_json('{file.stem}.jsonl', {write})\""
    )


def _has_dates(config: Config, table: Any) -> bool:
    """Return whether a used column holds dates or texts that look like converted dates."""
    used = {path.split(".")[0] for path in find_columns(config, table.features).values()} & {*table.features}
    return any(map(_holds_date, table.select_columns([*used]).data.itercolumns()))


def _holds_date(array: Any) -> bool:
    """Return whether an array of Arrow, or an array in it, holds dates or texts that begin like dates."""
    if hasattr(array, "chunks"):
        return any(map(_holds_date, array.chunks))
    kind = str(array.type)
    if kind.startswith("struct"):
        return any(map(_holds_date, array.flatten()))
    if kind.startswith(("list", "large_list")):
        return _holds_date(array.flatten())
    if kind in ("string", "large_string"):
        return any(text and DATE.match(text) for text in array.cast("binary").to_pylist())
    return kind.startswith("timestamp")


def _read_texts(config: Config, files: Sequence[Path]) -> Any:
    """Return the columns of text as written in json files; of other columns only the names."""
    import datasets

    rows = [row if isinstance(row, dict) else {"text": row} for file in files for row in _read_rows(file)]
    names = dict.fromkeys(name for row in rows for name in row)
    whole = datasets.Dataset.from_dict({name: [row.get(name) for row in rows] for name in names})
    kept = {path.split(".")[0] for path in find_columns(config, whole.features).values()} | {ORIGINAL}
    return datasets.Dataset.from_dict(
        {name: [row.get(name) if name in kept else None for row in rows] for name in names}
    )


def _read_rows(file: Path) -> list[Any]:
    """Return the rows of an array, or of consecutive objects."""
    with _open_text(file) as opened:
        text = opened.read().strip()
    if text.startswith("["):
        found: list[Any] = json.loads(text)
        return found
    rows, decoder, place = [], json.JSONDecoder(), 0
    while place < len(text):
        row, place = decoder.raw_decode(text, place)
        rows.append(row)
        while text[place : place + 1].isspace():
            place += 1
    return rows


def _open_text(file: Path) -> IO[str]:
    """Return a file of text, compressed or not."""
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    opened: IO[str] = openers.get(file.suffix, open)(file, "rt", encoding="utf-8-sig", newline="")
    return opened
