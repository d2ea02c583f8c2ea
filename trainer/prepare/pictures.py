"""What a data set of images lacks that every run would stumble over, said before it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainer.data.columns import Columns, pick_columns, store_pictures
from trainer.data.labels import describe_classes, read_labels
from trainer.data.opening import describe_repeated, find_unreadable, say_nothing
from trainer.data.split_names import choose_splits
from trainer.data.stored_pictures import Unreadable, name_all
from trainer.settings.config import Config, ConfigError


def check_images(
    name: str,
    tables: Mapping[str, Any],
    note: Callable[[str], None] = say_nothing,
    say: Callable[[str], None] = say_nothing,
) -> None:
    """Looks at the class of every sample, and decodes every picture once; nothing of a table without pictures.

    Args:
        note: is given how far it has come; say: a line for what is odd.

    Raises:
        DataMissing: samples without a class, or pictures that cannot be decoded.
    """
    import datasets

    data = f"--dataset {name!r}"
    pictures = [
        store_pictures(table, column, split, data)
        for split, table in tables.items()
        for column, feature in table.features.items()
        if isinstance(feature, datasets.Image)
    ]
    if not pictures:
        return
    columns = _check_labels(data, tables, say)
    broken: list[Unreadable] = []
    looked, total = 0, sum(map(len, pictures))
    for some in pictures:
        before = looked
        broken += find_unreadable(some, lambda opened: note(f"{before + opened} of {total} pictures opened"))  # noqa: B023
        looked += len(some)
    if broken:
        raise name_all(broken, looked)
    splits = choose_splits(tables, data)
    if columns and "test" in splits:
        test, train = (columns.open_pictures(splits[split], split) for split in ("test", "train"))
        for line in describe_repeated(test, [train]):
            say(line)


def _check_labels(data: str, tables: Mapping[str, Any], say: Callable[[str], None]) -> Columns | None:
    """The columns that hold pictures and classes; None: a setting of the runs says which."""
    splits = choose_splits(tables, data)
    try:
        columns = pick_columns(Config(run="prepare"), splits["train"], data=data)
    except ConfigError:
        return None
    names, codes = read_labels(splits, columns)
    if "test" in codes:
        for line in describe_classes(data, names, codes["train"], codes["test"]):
            say(line)
    return columns
