"""A folder with one folder of pictures per class, with or without splits above them.

    pets/train/cat/1.jpg  pets/test/cat/2.jpg     splits, by any usual name in any case: Train, VAL, testing
    pets/cat/1.jpg        pets/dog/2.jpg          one split
    pets/a/cat/1.jpg      pets/b/dog/2.jpg        the innermost folder is the class, and lies equally deep for all

Whatever could be read in two ways is refused. A class is known by its name: one list of names holds for all splits.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from trainer.data.data_files import MOST_NAMED
from trainer.data.split_names import usual_name
from trainer.failures import DataMissing
from trainer.settings.spelling import name_first

ONE_FOLDER_PER_CLASS = "put the images into one folder per class, two classes at least"
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Files by which `datasets` gives pictures their labels: such a folder is left to it."""
TABLES = (".parquet", ".arrow")
"""Where there is one, pictures beside it illustrate its description."""
DATA_FILES = (".json", ".jsonl", ".csv", ".tsv", ".zip", ".tar", ".gz")


def read_picture_folder(path: Path, data: str) -> dict[str, Any] | None:
    """{split: table of `datasets` with the columns image and label}; None: it is another kind of folder.

    Args:
        data: what the data set is called in sentences.

    Raises:
        DataMissing: pictures whose classes are not clear.
    """
    pictures = _find_pictures(path)
    if not pictures:
        return None
    try:
        splits = {split: _read_classes(inner, where) for split, where, inner in _divide(pictures)}
    except _Unclear as failure:
        raise DataMissing(f"{data}: {failure}") from None
    names = sorted({name for classes in splits.values() for name, _ in classes})
    return {split: _build_table(path, classes, names) for split, classes in splits.items()}


class _Unclear(Exception):
    """Pictures whose class is not clear, as a sentence."""


def describe_unlisted(path: Path, data: str, tables: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line where the metadata of a folder lists fewer pictures than lie in it.

    Args:
        data: the name of the data set in sentences.
        tables: of `datasets`, read from `path`.
    """
    if not any(True for name in METADATA for where in ("", "*/") for _ in path.glob(where + name)):
        return
    listed = {
        os.path.abspath(name)
        for table in tables.values()
        for column, feature in table.features.items()
        if type(feature).__name__ == "Image"
        for chunk in table.data.column(column).chunks
        for name in chunk.field("path").to_pylist()
        if name
    }
    known = _list_extensions()
    pictures = sorted(
        file for file in _list_files(path) if file.suffix.lower() in known and not file.name.startswith(".")
    )
    unlisted = [file for file in pictures if os.path.abspath(path / file) not in listed]
    if listed and unlisted:
        yield (
            f"{data}: {len(unlisted)} of {len(pictures)} pictures are left out, because no line of the metadata names "
            f"them: {name_first([str(file) for file in unlisted], MOST_NAMED)}"
        )


def _find_pictures(path: Path) -> list[PurePath]:
    """Sorted, relative to `path`; none where other files are the data."""
    known, pictures, others = _list_extensions(), [], 0
    for file in _list_files(path):
        extension = file.suffix.lower()
        if file.name in METADATA or extension in TABLES:
            return []
        if extension in known and not file.name.startswith("."):
            pictures.append(file)
        others += extension in DATA_FILES
    return sorted(pictures) if len(pictures) > others else []


def _list_extensions() -> set[str]:
    from PIL import Image

    return {*Image.registered_extensions(), ".jpg"}


def _list_files(path: Path) -> Iterator[PurePath]:
    """Every file relative to `path`, but for hidden folders; a folder that links lead to twice is read once."""
    seen: set[str] = set()
    for parent, folders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(parent)
        folders[:] = [name for name in folders if not name.startswith((".", "__")) and real not in seen]
        if real not in seen:
            seen.add(real)
            yield from (PurePath(parent, name).relative_to(path) for name in names)


def _divide(pictures: list[PurePath]) -> Iterator[tuple[str, str, list[PurePath]]]:
    """(split, its folder, its pictures relative to that) of each split."""
    tops = dict.fromkeys(picture.parts[0] for picture in pictures if len(picture.parts) > 1)
    folders = [top for top in tops if usual_name(top)]
    others = [top for top in tops if not usual_name(top)]
    if folders and others:
        if not any(picture.parts[0] in folders and len(picture.parts) > 2 for picture in pictures):
            folders = []  # a class is called so
        else:
            raise _Unclear(
                f"the folders {', '.join(folders)} are splits, and {', '.join(others)} beside them holds images too; "
                "move it away or into a split [SL-folder-beside-splits]"
            )
    if not folders:
        yield "train", "", pictures
        return
    if stray := next((picture for picture in pictures if len(picture.parts) == 1), None):
        raise _Unclear(
            f"{stray} lies beside the splits {', '.join(folders)}; move it into the folder of its class "
            "[SL-picture-beside-splits]"
        )
    for usual in dict.fromkeys(map(usual_name, folders)):
        mine = [top for top in folders if usual_name(top) == usual]
        if len(mine) > 1:
            raise _Unclear(
                f"the folders {', '.join(mine)} both mean the split {usual}; expected one [SL-split-folder-twice]"
            )
        yield usual, mine[0], [PurePath(*p.parts[1:]) for p in pictures if p.parts[0] == mine[0]]


def _read_classes(pictures: list[PurePath], where: str) -> list[tuple[str, PurePath]]:
    """(class, picture relative to the data set) of one split."""
    place = f"{where}/ " if where else ""
    straight = [picture for picture in pictures if len(picture.parts) == 1]
    if len(straight) == len(pictures):
        raise _Unclear(
            f"{place}holds images and no classes ({where and f'{where}/'}{straight[0]}); {ONE_FOLDER_PER_CLASS} "
            "[SL-folder-unlabelled]"
        )
    depths = sorted({len(picture.parts) for picture in pictures})
    if len(depths) > 1:
        low, high = (next(p for p in pictures if len(p.parts) == depth) for depth in (depths[0], depths[-1]))
        raise _Unclear(
            f"{place}holds images at several depths, so that their classes are not clear: {PurePath(where, low)} and "
            f"{PurePath(where, high)}; {ONE_FOLDER_PER_CLASS}, with no folder in it [SL-folder-depths]"
        )
    parents: dict[str, set[str]] = defaultdict(set)
    for picture in pictures:
        parents[picture.parts[-2]].add(str(PurePath(where, picture.parent)))
    if twice := next((found for found in parents.values() if len(found) > 1), None):
        raise _Unclear(
            f"the folders {' and '.join(sorted(twice))} have one name, and a class is known by it; rename them "
            "[SL-class-folder-twice]"
        )
    if usual_name(where) in ("", "train") and len(parents) == 1:
        raise _Unclear(
            f"{place}holds images and no classes but {next(iter(parents))}; {ONE_FOLDER_PER_CLASS} "
            "[SL-folder-one-class]"
        )
    return [(picture.parts[-2], PurePath(where, picture)) for picture in pictures]


def _build_table(path: Path, classes: list[tuple[str, PurePath]], names: list[str]) -> Any:
    import datasets

    code = {name: i for i, name in enumerate(names)}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    rows = {
        "image": [str(path / picture) for _, picture in classes],
        "label": [code[name] for name, _ in classes],
    }
    return datasets.Dataset.from_dict(rows, features=features)
