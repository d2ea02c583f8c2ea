"""What a data set of images lacks that every run would stumble over, said before it is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trainer.data.columns import pick_columns, store_pictures
from trainer.data.labels import read_labels
from trainer.data.opening import find_unreadable
from trainer.data.split_names import choose_splits
from trainer.data.stored_pictures import Unreadable, name_all
from trainer.settings.config import Config, ConfigError


def check_images(name: str, tables: Mapping[str, Any]) -> None:
    """Looks at the class of every sample, and decodes every picture once; nothing of a table without pictures.

    Raises:
        DataMissing: samples without a class, or pictures that cannot be decoded.
    """
    import datasets

    data = f"--dataset {name!r}"
    broken: list[Unreadable] = []
    looked = 0
    if any(isinstance(kind, datasets.Image) for table in tables.values() for kind in table.features.values()):
        _check_labels(data, tables)
    for split, table in tables.items():
        for column, feature in table.features.items():
            if isinstance(feature, datasets.Image):
                looked += len(table)
                broken += find_unreadable(store_pictures(table, column, split, data))
    if broken:
        raise name_all(broken, looked)


def _check_labels(data: str, tables: Mapping[str, Any]) -> None:
    splits = choose_splits(tables, data)
    try:
        columns = pick_columns(Config(run="prepare"), splits["train"])
    except ConfigError:  # which column holds the class is a setting of the runs
        return
    read_labels(splits, dataclasses.replace(columns, data=data))
