"""Any image-classification data set in `datasets` format: a hub id, a saved folder, or a folder of images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from trainer.data.columns import Columns, pick_columns
from trainer.data.fingerprint import hash_splits
from trainer.data.images import ImageData, Images, first_samples, hold_out
from trainer.data.undecodable import REPLACE, explain_undecodable, find_file
from trainer.failures import DataMissing
from trainer.settings.config import Config
from trainer.settings.names_elsewhere import hint_of_dataset

TEST_FRACTION = 0.2
SIZE_PROBES = 64
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
        DataMissing: no such data set, or images that cannot be decoded.
    """
    source = _open_source(config)
    train_name = "train" if "train" in source else next(iter(source))
    known = KNOWN.get(config.dataset) if not config.dataset_path else None
    columns = pick_columns(
        config, source[train_name], (known.image_column, known.label_column) if known else None
    )
    names = _class_names(columns, source[train_name])
    sizes = _probe_sizes(columns, source[train_name])
    edge = _stored_size(sizes, image_size)
    parts = {name: _images(columns, source[name], names, edge, image_size) for name in source}
    train = parts[train_name]
    test = parts.get("test") or parts.get("validation")
    if test is None:
        train, test = hold_out(train, TEST_FRACTION)
    validation = parts.get("validation") if "test" in parts else None
    if validation is None:
        train, validation = hold_out(train, config.validation_fraction)
    train = first_samples(train, config.train_samples)
    shorter = int(np.median([min(size) for size in sizes]))
    return ImageData(train, validation, test, names, hash_splits(train, validation, test), shorter)


def _open_source(config: Config) -> Any:
    import datasets

    datasets.disable_progress_bars()
    if not config.dataset_path:
        known = KNOWN.get(config.dataset)
        try:
            return datasets.load_dataset(known.hub_id if known else config.dataset)
        except Exception as failure:  # a dozen classes of the hub's client: they all mean "not to be had"
            hint = hint_of_dataset(config.dataset)
            raise DataMissing(
                f"TRAINER_DATASET={config.dataset!r}: cannot be loaded: {failure}{hint}"
            ) from failure
    path = Path(config.dataset_path)
    if not path.is_dir():
        raise DataMissing(f"TRAINER_DATASET_PATH={config.dataset_path!r}: no such folder")
    saved = (path / "dataset_dict.json").exists() or (path / "state.json").exists()
    try:
        source = datasets.load_from_disk(str(path)) if saved else datasets.load_dataset(str(path))
    except Exception as failure:  # as above
        raise DataMissing(
            f"TRAINER_DATASET_PATH={config.dataset_path!r}: not a data set in `datasets` format "
            f"(saved with save_to_disk, parquet files, or folders of images): {failure}"
        ) from failure
    return source if isinstance(source, dict) else {"train": source}


def _class_names(columns: Columns, table: Any) -> list[str]:
    feature = table.features[columns.label]
    if hasattr(feature, "names"):
        return list(feature.names)
    return [str(name) for name in sorted(table.unique(columns.label))]


def _probe_sizes(columns: Columns, table: Any) -> list[tuple[int, int]]:
    """(width, height) of some images, spread over the table."""
    table = columns.as_images(table)
    probes = np.unique(np.linspace(0, len(table) - 1, SIZE_PROBES).astype(np.int64))
    return [_open_image(columns, table, int(i)).size for i in probes]


def _stored_size(sizes: list[tuple[int, int]], image_size: int) -> int:
    largest = math.ceil(image_size * STORED_PER_IMAGE_SIZE)
    width, height = sizes[0]
    return width if len(set(sizes)) == 1 and width == height and width <= largest else largest


def _open_image(columns: Columns, table: Any, index: int) -> Image.Image:
    try:
        return table[index][columns.image].convert("RGB")
    except Exception as failure:
        if file := find_file(table, columns.image, index):
            named = (
                f"{columns.data}: sample {index} ({file}) cannot be decoded: {explain_undecodable(failure)}"
            )
            raise DataMissing(f"{named}; {REPLACE}") from failure
        named = f"TRAINER_IMAGE_COLUMN={columns.image!r}: sample {index} of {columns.data}"
        raise DataMissing(f"{named} cannot be decoded: {explain_undecodable(failure)}") from failure


def _images(columns: Columns, table: Any, names: list[str], edge: int, image_size: int) -> Images:
    pictures = columns.as_images(table)

    def decode(index: int) -> NDArray[np.uint8]:
        image = _cut_square(_open_image(columns, pictures, index), edge)
        return np.ascontiguousarray(np.asarray(image, np.uint8).transpose(2, 0, 1))

    return Images(
        decode,
        _labels(columns, table, names),
        (3, edge, edge),
        image_size=image_size,
        classes=len(names),
        slow=True,
    )


def _cut_square(image: Image.Image, edge: int) -> Image.Image:
    """The middle of the image after its shorter edge was resized to `edge`."""
    width, height = image.size
    if (width, height) == (edge, edge):
        return image
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize((edge, edge), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


def _labels(columns: Columns, table: Any, names: list[str]) -> NDArray[np.int64]:
    raw = table.with_format(None)[columns.label]
    if hasattr(table.features[columns.label], "names"):
        return np.asarray(list(raw), np.int64)
    number = {name: i for i, name in enumerate(names)}
    unknown = sorted({str(label) for label in raw} - number.keys())
    if unknown:
        raise DataMissing(f"TRAINER_LABEL_COLUMN={columns.label!r}: {unknown[:3]} not in the train split")
    return np.asarray([number[str(label)] for label in raw], np.int64)
