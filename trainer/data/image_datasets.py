"""Open any data set of images in `datasets` format: a hub id, a saved folder, or a folder of images.

`read_picture_folder` reads a folder with one folder of pictures per class, with or without splits above them:

    pets/train/cat/1.jpg  pets/test/cat/2.jpg     splits, by any usual name in any case: Train, VAL, testing
    pets/cat/1.jpg        pets/dog/2.jpg          one split
    pets/a/cat/1.jpg      pets/b/dog/2.jpg        the innermost folder is the class, at the same depth for all

Ambiguous folders are rejected. The name of a class identifies it: all splits share one list of names.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config, hint_of_dataset
from stratlab_spec.settings.wording import name_first
from trainer.data.columns import describe_classes, pick_columns, read_labels
from trainer.data.files import (
    AT_ONCE,
    HIDDEN,
    MOST_FILES_NAMED,
    check_unread,
    choose_splits,
    describe_unused,
    find_unreadable,
    load_with_own_names,
    open_saved,
    usual_name,
)
from trainer.data.images import TEST_FRACTION, ImageData, Images, first_samples, hash_splits, hold_out
from trainer.data.pictures import FULL, Opened, StoredPictures, Unreadable, name_all, store_pictures

ONE_FOLDER_PER_CLASS = "put the images into one folder per class, with at least two classes"
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Files that give pictures their labels in `datasets`; `datasets` reads such folders."""
TABLES = (".parquet", ".arrow")
"""If present, pictures next to it illustrate its description."""
DATA_FILES = (".json", ".jsonl", ".csv", ".tsv", ".zip", ".tar", ".gz")


def read_picture_folder(path: Path, data: str) -> dict[str, Any] | None:
    """Return {split: table of `datasets` with the columns image and label}; None for another kind of folder.

    Args:
        data: name of the data set in messages.

    Raises:
        DataMissing: the classes of the pictures are ambiguous.
    """
    import datasets

    pictures = _find_pictures(path)
    if not pictures:
        return None
    try:
        splits = {split: _read_classes(inner, where) for split, where, inner in _divide(pictures)}
    except _Unclear as failure:
        raise DataMissing(f"{data}: {failure}") from None
    names = sorted({name for classes in splits.values() for name, _ in classes})
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    tables = {}
    for split, classes in splits.items():  # a ClassLabel treats names as codes
        rows = {"image": [str(path / file) for _, file in classes], "label": [name for name, _ in classes]}
        tables[split] = datasets.Dataset.from_dict(rows, features=features)
    return tables


class _Unclear(Exception):
    """The class of a picture is ambiguous; the text is the reason."""


def describe_unlisted(path: Path, data: str, tables: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line if the metadata of a folder lists fewer pictures than the folder holds.

    Args:
        data: name of the data set in messages.
        tables: opened by `datasets` from `path`.
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
    pictures = sorted(filter(_is_picture, _list_files(path)))
    unlisted = [file for file in pictures if os.path.abspath(path / file) not in listed]
    if listed and unlisted:
        yield (
            f"{data}: {len(unlisted)} of {len(pictures)} pictures are left out, because the metadata does not list "
            f"them: {name_first([str(file) for file in unlisted], MOST_FILES_NAMED)}"
        )


def _find_pictures(path: Path) -> list[PurePath]:
    """Return the pictures, sorted, relative to `path`; empty if other files hold the data."""
    files = [*_list_files(path)]
    if any(file.name in METADATA or file.suffix.lower() in TABLES for file in files):
        return []
    pictures = sorted(filter(_is_picture, files))
    return pictures if len(pictures) > sum(file.suffix.lower() in DATA_FILES for file in files) else []


def _is_picture(file: PurePath) -> bool:
    suffix = file.suffix.lower()
    known = suffix == ".jpg" or suffix in Image.registered_extensions()
    return known and not file.name.startswith(".")


def _list_files(path: Path) -> Iterator[PurePath]:
    """Yield every file relative to `path`, without hidden folders; a folder reached by two links is read once."""
    seen: set[str] = set()
    for parent, folders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(parent)
        folders[:] = [name for name in folders if not name.startswith(HIDDEN) and real not in seen]
        if real not in seen:
            seen.add(real)
            yield from (PurePath(parent, name).relative_to(path) for name in names)


def _divide(pictures: list[PurePath]) -> Iterator[tuple[str, str, list[PurePath]]]:
    """Yield (split, its folder, its pictures relative to that folder) of each split."""
    tops = dict.fromkeys(picture.parts[0] for picture in pictures if len(picture.parts) > 1)
    folders = [top for top in tops if usual_name(top)]
    others = [top for top in tops if not usual_name(top)]
    if folders and others:
        if not any(picture.parts[0] in folders and len(picture.parts) > 2 for picture in pictures):
            folders = []  # these are names of classes
        else:
            raise _Unclear(
                f"the folders {', '.join(folders)} are splits, but {', '.join(others)} next to them holds images too; "
                "move it away or into a split [SL-folder-beside-splits]"
            )
    if not folders:
        yield "train", "", pictures
        return
    if stray := next((picture for picture in pictures if len(picture.parts) == 1), None):
        raise _Unclear(
            f"{stray} is next to the splits {', '.join(folders)}; move it into the folder of its class "
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
    """Return (class, picture relative to the data set) of one split."""
    place = f"{where}/ " if where else ""
    straight = [picture for picture in pictures if len(picture.parts) == 1]
    if len(straight) == len(pictures):
        raise _Unclear(
            f"{place}holds images without classes ({where and f'{where}/'}{straight[0]}); {ONE_FOLDER_PER_CLASS} "
            "[SL-folder-unlabelled]"
        )
    depths = sorted({len(picture.parts) for picture in pictures})
    if len(depths) > 1:
        low, high = (next(p for p in pictures if len(p.parts) == depth) for depth in (depths[0], depths[-1]))
        raise _Unclear(
            f"{place}holds images at several depths, so their classes are ambiguous: {PurePath(where, low)} and "
            f"{PurePath(where, high)}; {ONE_FOLDER_PER_CLASS} and without subfolders [SL-folder-depths]"
        )
    parents: dict[str, set[str]] = defaultdict(set)
    for picture in pictures:
        parents[picture.parts[-2]].add(str(PurePath(where, picture.parent)))
    if twice := next((found for found in parents.values() if len(found) > 1), None):
        raise _Unclear(
            f"the folders {' and '.join(sorted(twice))} have the same name, which would be one class; rename them "
            "[SL-class-folder-twice]"
        )
    if usual_name(where) in ("", "train") and len(parents) == 1:
        raise _Unclear(
            f"{place}holds images of only one class, {next(iter(parents))}; {ONE_FOLDER_PER_CLASS} "
            "[SL-folder-one-class]"
        )
    return [(picture.parts[-2], PurePath(where, picture)) for picture in pictures]


PROBES = 64
DARK = 1 / 16
"""The 12-bit maximum as a share of the 16-bit range."""
STORED_PER_IMAGE_SIZE = 8 / 7  # 256 for 224: the margin of a random crop (He et al. 2016, section 3.4)


KNOWN = {
    "cifar100": ("uoft-cs/cifar100", "img", "fine_label"),
    "food101": ("ethz/food101", "image", "label"),  # its `validation` is the published test split
}
"""Data sets by short name: the id on the hub, and its columns of images and classes."""


def load_images(config: Config, image_size: int) -> ImageData:
    """Return the data set named by `dataset_path` or `dataset`, as RGB.

    A split `test` (else `validation`) is the test split; without either, a fifth of `train` is held out.
    If `test` exists, `validation` is the validation split; without it, `validation_fraction` of `train` is held out.

    Images are stored unchanged if all are squares of one size of at most 8/7 of `image_size` (CIFAR). Otherwise the
    shorter edge is resized to 8/7 of `image_size` and the centre is cropped, once.

    Raises:
        ConfigError: columns are absent or ambiguous.
        DataMissing: the data set does not exist, images cannot be decoded, or samples have no class.
    """
    source, data = _open_source(config), config.dataset_setting
    splits = choose_splits(source, data)
    _, *known = KNOWN.get(config.dataset, [""]) if not config.dataset_path else [""]
    columns = pick_columns(config, splits["train"], known)
    names, codes = read_labels(splits, columns)
    pictures = {split: store_pictures(table, columns.image, split, data) for split, table in splits.items()}
    probes, broken = _probe(pictures["train"])
    sizes = [probe.rgb.size for probe in probes]
    largest = math.ceil(image_size * STORED_PER_IMAGE_SIZE)
    square = len(set(sizes)) == 1 and sizes[0][0] == sizes[0][1] <= largest
    edge = sizes[0][0] if square else largest
    parts = {split: _images(pictures[split], codes[split], len(names), edge, image_size) for split in splits}
    train = parts["train"]
    test = parts.get("test") or parts.get("validation")
    if test is None:
        train, test = hold_out(train, TEST_FRACTION)
    validation = parts.get("validation") if "test" in parts else None
    if validation is None:
        train, validation = hold_out(train, config.validation_fraction)
    train = first_samples(train, config.train_samples)
    digest = _hash(train, validation, test, broken)
    shorter = int(np.median([min(size) for size in sizes]))
    notes = (
        *describe_unused(data, source, splits),
        *(describe_unlisted(Path(config.dataset_path), data, source) if config.dataset_path else ()),
        *describe_classes(data, names, train.labels, test.labels),
        *_describe_pixels(data, probes),
    )
    return ImageData(train, validation, test, names, digest, shorter, notes)


def open_folder(path: Path, data: str) -> dict[str, Any]:
    """Return the tables of a folder: saved by `datasets`, one folder of pictures per class, or data files.

    Args:
        data: name of the data set in messages.

    Raises:
        DataMissing: the classes of pictures are ambiguous, or data files would be ignored.
        Exception: any error of `datasets`.
    """
    if (saved := open_saved(path)) is not None:
        return saved
    if (pictures := read_picture_folder(path, data)) is not None:
        return pictures
    check_unread(data, path)
    return load_with_own_names(path, data)


def _open_source(config: Config) -> dict[str, Any]:
    import datasets

    datasets.disable_progress_bars()
    data = config.dataset_setting
    if not config.dataset_path:
        try:
            return dict(datasets.load_dataset(KNOWN.get(config.dataset, [config.dataset])[0]))
        except (
            Exception
        ) as failure:  # the hub's client raises a dozen classes, all for an unavailable data set
            hint = hint_of_dataset(config.dataset)
            raise DataMissing(
                f"{data}: cannot be loaded: {failure}{hint} [SL-dataset-unloadable]"
            ) from failure
    path = Path(config.dataset_path)
    if not path.is_dir():
        raise DataMissing(f"{data}: no such folder [SL-dataset-folder-absent]")
    try:
        return open_folder(path, data)
    except DataMissing:
        raise
    except Exception as failure:  # as above
        raise DataMissing(
            f"{data}: not a data set in `datasets` format "
            f"(saved with save_to_disk, parquet files, or folders of images): {failure} [SL-dataset-format]"
        ) from failure


def _probe(pictures: StoredPictures) -> tuple[list[Opened], list[Unreadable]]:
    """Return some pictures, spread over the split, and those that cannot be decoded.

    Raises:
        DataMissing: none can be decoded.
    """
    opened, broken = [], []
    for index in np.unique(np.linspace(0, len(pictures) - 1, PROBES).astype(np.int64)):
        try:
            opened.append(pictures.open(int(index)))
        except Unreadable as failure:
            broken.append(failure)
    if not opened:
        raise name_all(broken, len(broken))
    return opened, broken


def _hash(train: Images, validation: Images, test: Images, broken: list[Unreadable]) -> str:
    """Return the sha256 of the splits; if a picture is broken, name all broken held-out pictures.

    Raises:
        DataMissing: pictures cannot be decoded.
    """
    try:
        if not broken:
            return hash_splits(train, validation, test)
    except Unreadable as failure:
        broken = [failure]
    held = [part.stored for part in (validation, test) if part.stored]
    count = sum(map(len, held))
    if count <= AT_ONCE:
        broken = broken + [failure for pictures in held for failure in find_unreadable(pictures)]
    raise name_all([*{failure.place: failure for failure in broken}.values()], count + PROBES)


def _describe_pixels(data: str, probes: list[Opened]) -> Iterator[str]:
    """Yield one line per unusual fact about the probed pictures."""
    brightest = [probe.brightest for probe in probes if probe.brightest is not None]
    if brightest and max(brightest) < DARK:
        yield (
            f"{data}: the largest 16-bit value in the sampled pictures is {max(brightest) * FULL:,.0f} of {FULL:,} "
            "(white), so the pictures are nearly black; rescale them to the whole range if they use fewer bits"
        )
    if all(np.ptp(np.asarray(probe.rgb), axis=(0, 1)).max() == 0 for probe in probes):
        yield f"{data}: each of the {len(probes)} sampled pictures has one flat colour"
    if several := sum(probe.frames for probe in probes):
        yield (
            f"{data}: {several} of the {len(probes)} sampled pictures have several frames; only the first frame "
            "is used"
        )


def _images(
    pictures: StoredPictures, labels: NDArray[np.int64], classes: int, edge: int, image_size: int
) -> Images:
    def decode(index: int) -> NDArray[np.uint8]:
        image = _cut_square(pictures.open(index).rgb, edge)
        return np.ascontiguousarray(np.asarray(image, np.uint8).transpose(2, 0, 1))

    shape = (3, edge, edge)
    return Images(decode, labels, shape, image_size=image_size, classes=classes, slow=True, stored=pictures)


def _cut_square(image: Image.Image, edge: int) -> Image.Image:
    """Return the centre of the image after its shorter edge was resized to `edge`."""
    width, height = image.size
    if (width, height) == (edge, edge):
        return image
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize((edge, edge), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
