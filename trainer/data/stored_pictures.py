"""The pictures of a split as they are stored: files, or bytes inside a table. Without torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.pixel_modes import Opened, open_picture
from trainer.failures import DataMissing
from trainer.settings.spelling import name_first

REPLACE = "remove or replace the file [SL-picture-undecodable]"
MOST_NAMED = 10


class Unreadable(DataMissing):
    """One picture that cannot be used.

    Args:
        data: the setting that names the data set.
        place: `train sample 7 (cat/7.png)`.
    """

    def __init__(self, data: str, place: str, why: str) -> None:
        super().__init__(f"{data}: {place} cannot be decoded: {why}; {REPLACE}")
        self.data, self.place, self.why = data, place, why


def name_all(found: list[Unreadable], looked: int) -> DataMissing:
    """One failure that names them all, the first ten by their places.

    Args:
        looked: pictures that were opened.
    """
    if len(found) == 1:
        return found[0]
    named = name_first([f"{one.place}: {one.why}" for one in found], MOST_NAMED)
    return DataMissing(
        f"{found[0].data}: {len(found)} of {looked} pictures cannot be decoded: {named}; {REPLACE}"
    )


class StoredPictures:
    """Some pictures of one split.

    Args:
        cells: table of `datasets` whose only column has their bytes or paths, not decoded.
        column: its name.
        split, data: names for sentences, the second with the setting that names the data set.
        indices: rows of the table; None = all.
    """

    def __init__(
        self, cells: Any, column: str, split: str, data: str, indices: NDArray[np.int64] | None = None
    ) -> None:
        self.cells, self.column, self.split, self.data = cells, column, split, data
        self.indices = np.arange(len(cells)) if indices is None else indices

    def __len__(self) -> int:
        return len(self.indices)

    def part(self, indices: NDArray[np.int64]) -> StoredPictures:
        """Some of these."""
        return StoredPictures(self.cells, self.column, self.split, self.data, self.indices[indices])

    def open(self, index: int) -> Opened:
        """The decoded picture.

        Raises:
            Unreadable: it cannot be decoded.
        """
        cell = None
        try:
            cell = self._cell(index)
            return open_picture(cell)
        except Exception as failure:  # Pillow raises a dozen classes for what is no picture
            file = cell["path"] if cell and cell["path"] else f"column {self.column!r}"
            place = f"{self.split} sample {self.indices[index]} ({file})"
            raise Unreadable(self.data, place, _explain(failure)) from failure

    def content(self, index: int) -> bytes:
        """The picture's bytes as they are stored; empty where there are none."""
        try:
            cell = self._cell(index)
            return cell["bytes"] if cell["bytes"] is not None else Path(cell["path"]).read_bytes()
        except (OSError, TypeError):
            return b""

    def size(self, index: int) -> int:
        """How many bytes `content` has, without reading a file."""
        try:
            cell = self._cell(index)
            return len(cell["bytes"]) if cell["bytes"] is not None else os.stat(cell["path"]).st_size
        except (OSError, TypeError):
            return 0

    def _cell(self, index: int) -> Any:
        return self.cells[int(self.indices[index])][self.column]


def _explain(failure: BaseException) -> str:
    """PIL names an address in memory where it knows no format."""
    if type(failure).__name__ == "UnidentifiedImageError":
        return "it is no picture of a known format"
    return str(failure) or type(failure).__name__
