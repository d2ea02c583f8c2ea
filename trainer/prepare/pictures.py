"""What a local data set of images lacks that every run would stumble over, said before it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.data.columns import has_images_alone, say_no_classes, store_pictures
from trainer.data.opening import find_unreadable
from trainer.data.stored_pictures import Unreadable, name_all
from trainer.failures import DataMissing


def check_images(name: str, splits: Mapping[str, Any]) -> None:
    """Decodes every picture once.

    Raises:
        DataMissing: pictures that cannot be decoded, or pictures without classes.
    """
    import datasets

    broken: list[Unreadable] = []
    looked = 0
    for split, table in splits.items():
        if has_images_alone(table):
            raise DataMissing(f"--dataset {name!r}: {say_no_classes(name)}")
        for column, feature in table.features.items():
            if isinstance(feature, datasets.Image):
                looked += len(table)
                broken += find_unreadable(store_pictures(table, column, split, f"--dataset {name!r}"))
    if broken:
        raise name_all(broken, looked)
