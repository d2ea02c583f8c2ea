"""What a local data set of images lacks that every run would stumble over, said before it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.data.columns import has_images_alone, say_no_classes
from trainer.data.undecodable import REPLACE, find_undecodable
from trainer.failures import DataMissing

MOST_TOLD = 5


def check_images(name: str, splits: Mapping[str, Any]) -> None:
    """Decodes every picture once.

    Raises:
        DataMissing: pictures that cannot be decoded, or pictures without classes.
    """
    import datasets

    broken, looked = [], 0
    for split, table in splits.items():
        if has_images_alone(table):
            raise DataMissing(f"--dataset {name!r}: {say_no_classes(name)}")
        for column, feature in table.features.items():
            if isinstance(feature, datasets.Image):
                looked += len(table)
                broken += [f"{split} sample {found}" for found in find_undecodable(table, column)]
    if not broken:
        return
    more = f" and {len(broken) - MOST_TOLD} more" if len(broken) > MOST_TOLD else ""
    told = "; ".join(broken[:MOST_TOLD])
    raise DataMissing(
        f"--dataset {name!r}: {len(broken)} of {looked} pictures cannot be decoded, {told}{more}; {REPLACE}"
    )
