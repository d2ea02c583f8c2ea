"""Opens the files of a local data set of text, each split for itself, with every text as it stands in its file.

`datasets` gives all splits the columns of the first one, and takes texts for dates where all of a part look like them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.data.data_files import READERS, check_unread
from trainer.data.text.text_files import check_folder, find_reader
from trainer.failures import DataMissing
from trainer.settings.config import ConfigError

QUERY, RESPONSE, ORIGINAL = "query", "response", "original_question"
DATE = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
"""How a text begins after it was taken for a date."""


def open_local(name: str, path: Path) -> dict[str, Any]:
    """{split: table of `datasets`} of a file, a folder of files, or a folder that `datasets` has saved.

    Args:
        name: what the data set is called in sentences.

    Raises:
        ConfigError: a json file that holds one object instead of rows.
        DataMissing: files that are not read, or whose columns differ within a split.
        Exception: whatever `datasets` raises.
    """
    import datasets

    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        source = datasets.load_from_disk(str(path))
        return dict(source) if isinstance(source, dict) else {"train": source}
    if path.is_file():
        return {"train": _load_split(name, "train", find_reader(name, path), [path])}
    check_folder(name, path)
    check_unread(name, path)
    listed = datasets.load_dataset_builder(str(path)).config.data_files or {}
    found = {str(split): [Path(file) for file in files] for split, files in listed.items()}
    return {
        split: _load_split(name, split, READERS[files[0].suffix], files) for split, files in found.items()
    }


def describe_cast(failure: Exception) -> str:
    """How the columns of two files differ that were to be one table; "" of another failure."""
    cause = failure.__cause__ or failure
    first, other = (getattr(cause, f"{which}_column_names", None) or [] for which in ("requested", "table"))
    if not (more := [name for name in other if name not in first]):
        return ""
    return (
        f"one file has the columns {', '.join(first)}, another one has {', '.join(more)}; "
        "give all files the same columns [SL-files-columns-differ]"
    )


def _load_split(name: str, split: str, reader: str, files: Sequence[Path]) -> Any:
    import datasets

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
            [
                f"{name}: split {split!r}: {files[0].name} holds one object, expected one row per question "
                f"[SL-json-one-object]; convert it, then remove it: {cure}"
            ]
        )
    return _read_texts(files) if _has_dates(table) else table


def _find_cure(file: Path, features: Any) -> str:
    """The command that makes rows of an object of columns, or of lists of rows; "" of another object."""
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
    """The columns that are learnt from, as they stand in json files; of the others the names."""
    import datasets

    rows = [row for file in files for row in _read_rows(file)]
    names = dict.fromkeys(name for row in rows for name in row)
    kept = (QUERY, RESPONSE, ORIGINAL)
    return datasets.Dataset.from_dict(
        {name: [row.get(name) if name in kept else None for row in rows] for name in names}
    )


def _read_rows(file: Path) -> list[dict[str, Any]]:
    """Of an array, or of objects one after the other."""
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
