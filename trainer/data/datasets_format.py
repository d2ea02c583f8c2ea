"""Any image-classification data set in `datasets` format: a hub id, a saved folder, or a folder of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from trainer.config import Config, ConfigError
from trainer.data.fingerprint import hash_splits
from trainer.data.images import ImageData, Images, first_samples, hold_out
from trainer.failures import DataMissing

TEST_FRACTION = 0.2


def load_images(config: Config, image_size: int) -> ImageData:
    """The data set named by `dataset_path` or `dataset`, as RGB.

    A split `test` (else `validation`) is the test split; without either a fifth of `train` is held out.
    `validation` beside `test` is the validation split, else `validation_fraction` of `train` is.
    """
    source = _open_source(config)
    train_name = "train" if "train" in source else next(iter(source))
    _check_columns(config, source[train_name])
    names = _class_names(config, source[train_name])
    parts = {name: _images(config, source[name], names, image_size) for name in source}
    train = parts[train_name]
    test = parts.get("test") or parts.get("validation")
    if test is None:
        train, test = hold_out(train, TEST_FRACTION)
    validation = parts.get("validation") if "test" in parts else None
    if validation is None:
        train, validation = hold_out(train, config.validation_fraction)
    train = first_samples(train, config.train_samples)
    return ImageData(train, validation, test, names, hash_splits(train, validation, test))


def _open_source(config: Config) -> Any:
    import datasets

    datasets.disable_progress_bars()
    if not config.dataset_path:
        try:
            return datasets.load_dataset(config.dataset)
        except Exception as failure:  # a dozen classes of the hub's client: they all mean "not to be had"
            raise DataMissing(f"TRAINER_DATASET={config.dataset!r}: cannot be loaded: {failure}") from failure
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


def _check_columns(config: Config, table: Any) -> None:
    problems = []
    for name, value in (("IMAGE", config.image_column), ("LABEL", config.label_column)):
        if value not in table.column_names:
            has = ", ".join(table.column_names)
            problems.append(f"TRAINER_{name}_COLUMN={value!r}: the data set has the columns {has}")
    if problems:
        raise ConfigError(problems)


def _class_names(config: Config, table: Any) -> list[str]:
    feature = table.features[config.label_column]
    if hasattr(feature, "names"):
        return list(feature.names)
    return [str(name) for name in sorted(table.unique(config.label_column))]


def _images(config: Config, table: Any, names: list[str], image_size: int) -> Images:
    import datasets

    column = config.image_column
    if not isinstance(table.features[column], datasets.Image):
        try:
            table = table.cast_column(column, datasets.Image())
        except Exception as failure:
            kind = table.features[column]
            raise ConfigError(
                [f"TRAINER_IMAGE_COLUMN={column!r}: holds {kind}, not images (PIL, bytes or paths)"]
            ) from failure

    def decode(index: int) -> NDArray[np.uint8]:
        try:
            image = table[index][column].convert("RGB")
        except Exception as failure:
            raise DataMissing(
                f"TRAINER_IMAGE_COLUMN={column!r}: sample {index} cannot be decoded: {failure}"
            ) from failure
        resized = image.resize((image_size, image_size), Image.Resampling.BILINEAR)
        return np.ascontiguousarray(np.asarray(resized, np.uint8).transpose(2, 0, 1))

    return Images(decode, _labels(config, table, names), (3, image_size, image_size))


def _labels(config: Config, table: Any, names: list[str]) -> NDArray[np.int64]:
    raw = table.with_format(None)[config.label_column]
    if hasattr(table.features[config.label_column], "names"):
        return np.asarray(list(raw), np.int64)
    number = {name: i for i, name in enumerate(names)}
    unknown = sorted({str(label) for label in raw} - number.keys())
    if unknown:
        raise DataMissing(
            f"TRAINER_LABEL_COLUMN={config.label_column!r}: {unknown[:3]} not in the train split"
        )
    return np.asarray([number[str(label)] for label in raw], np.int64)
