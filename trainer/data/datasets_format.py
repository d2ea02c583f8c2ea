"""Any image-classification data set in `datasets` format: a hub id, a saved folder, or a folder of images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from trainer.data.columns import name_data, pick_columns
from trainer.data.data_files import check_unread
from trainer.data.fingerprint import hash_splits
from trainer.data.images import ImageData, Images, first_samples, hold_out
from trainer.data.labels import describe_classes, read_labels
from trainer.data.opening import AT_ONCE, find_unreadable
from trainer.data.picture_folder import describe_unlisted, read_picture_folder
from trainer.data.pixel_modes import FULL, Opened
from trainer.data.split_names import choose_splits, describe_unused, find_unused, load_with_own_names
from trainer.data.stored_pictures import StoredPictures, Unreadable, name_all
from trainer.failures import DataMissing
from trainer.settings.config import Config
from trainer.settings.names_elsewhere import hint_of_dataset

TEST_FRACTION = 0.2
PROBES = 64
DARK = 1 / 16
"""Of the range of 16 bits: what 12 bits reach in it."""
STORED_PER_IMAGE_SIZE = 8 / 7  # 256 for 224: what a random crop has room in (He et al. 2016, section 3.4)


class Known(NamedTuple):
    """A data set by a short name. The columns are its authors'."""

    hub_id: str
    image_column: str
    label_column: str


KNOWN = {
    "cifar100": Known("uoft-cs/cifar100", "img", "fine_label"),
    "food101": Known("ethz/food101", "image", "label"),  # its `validation` is the published test split
}


def load_images(config: Config, image_size: int) -> ImageData:
    """The data set named by `dataset_path` or `dataset`, as RGB.

    A split `test` (else `validation`) is the test split; without either a fifth of `train` is held out.
    `validation` beside `test` is the validation split, else `validation_fraction` of `train` is.

    Images are stored as they are where all are squares of one size that is not above 8/7 of `image_size` (CIFAR);
    else the shorter edge is resized to that and the middle is cut out, once.

    Raises:
        ConfigError: columns that are not there, or not to be told.
        DataMissing: no such data set, images that cannot be decoded, or samples without a class.
    """
    source, data = _open_source(config), name_data(config)
    splits = choose_splits(source, data)
    known = KNOWN.get(config.dataset) if not config.dataset_path else None
    columns = pick_columns(
        config, splits["train"], (known.image_column, known.label_column) if known else None
    )
    names, codes = read_labels(splits, columns)
    pictures = {split: columns.open_pictures(table, split) for split, table in splits.items()}
    probes, broken = _probe(pictures["train"])
    sizes = [probe.rgb.size for probe in probes]
    edge = _stored_size(sizes, image_size)
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
        *describe_unused(data, find_unused(source, splits)),
        *(describe_unlisted(Path(config.dataset_path), data, source) if config.dataset_path else ()),
        *describe_classes(data, names, train.labels, test.labels),
        *_describe_pixels(data, probes),
    )
    return ImageData(train, validation, test, names, digest, shorter, notes)


def open_folder(path: Path, data: str) -> dict[str, Any]:
    """The tables of a folder: saved by `datasets`, one folder of pictures per class, or files that `datasets` reads.

    Args:
        data: what the data set is called in sentences.

    Raises:
        DataMissing: pictures whose classes are not clear, or data files that would be left out.
        Exception: whatever `datasets` raises.
    """
    import datasets

    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        source = datasets.load_from_disk(str(path))
        return dict(source) if isinstance(source, dict) else {"train": source}
    found = read_picture_folder(path, data)
    if found is None:
        check_unread(data, path)
        return load_with_own_names(path, data)
    return found


def _open_source(config: Config) -> dict[str, Any]:
    import datasets

    datasets.disable_progress_bars()
    data = name_data(config)
    if not config.dataset_path:
        known = KNOWN.get(config.dataset)
        try:
            return dict(datasets.load_dataset(known.hub_id if known else config.dataset))
        except Exception as failure:  # a dozen classes of the hub's client: they all mean "not to be had"
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
    """Some pictures, spread over the split, and those of them that cannot be decoded.

    Raises:
        DataMissing: none can.
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
    """sha256 of the splits; where pictures are found broken on the way, all of them that are held out are named too.

    Raises:
        DataMissing: pictures that cannot be decoded.
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
    """What is odd about all probed pictures."""
    brightest = [probe.brightest for probe in probes if probe.brightest is not None]
    if brightest and max(brightest) < DARK:
        yield (
            f"{data}: the largest of the 16-bit values looked at is {max(brightest) * FULL:,.0f} of {FULL:,}, which is "
            "white, so the pictures are nearly black; stretch them to the whole range if they mean fewer bits"
        )
    if all(np.ptp(np.asarray(probe.rgb), axis=(0, 1)).max() == 0 for probe in probes):
        yield f"{data}: each of the {len(probes)} pictures looked at has one flat colour"
    if several := sum(probe.frames for probe in probes):
        yield (
            f"{data}: {several} of the {len(probes)} pictures looked at have several frames; the first one of each "
            "is used"
        )


def _stored_size(sizes: list[tuple[int, int]], image_size: int) -> int:
    largest = math.ceil(image_size * STORED_PER_IMAGE_SIZE)
    width, height = sizes[0]
    return width if len(set(sizes)) == 1 and width == height and width <= largest else largest


def _images(
    pictures: StoredPictures, labels: NDArray[np.int64], classes: int, edge: int, image_size: int
) -> Images:
    def decode(index: int) -> NDArray[np.uint8]:
        image = _cut_square(pictures.open(index).rgb, edge)
        return np.ascontiguousarray(np.asarray(image, np.uint8).transpose(2, 0, 1))

    shape = (3, edge, edge)
    return Images(decode, labels, shape, image_size=image_size, classes=classes, slow=True, stored=pictures)


def _cut_square(image: Image.Image, edge: int) -> Image.Image:
    """The middle of the image after its shorter edge was resized to `edge`."""
    width, height = image.size
    if (width, height) == (edge, edge):
        return image
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize((edge, edge), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
