"""Decode stored pictures, files or bytes in a table, to RGB with 8 bits per channel, without torch.

* 1, L, P, RGB, CMYK, YCbCr, LAB, HSV: converted by Pillow
* LA, La, PA, RGBA, RGBa, tRNS: composited on BACKGROUND, because colours of fully transparent pixels are undefined
* I;16, I of PNG and PPM: divided by their range (65,535; for TIFF its own bits per sample)
* I of other formats, F: rejected: the value of white is unknown
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import ConfigError
from stratlab_spec.settings.wording import name_first

BACKGROUND = (255, 255, 255)
"""White, the background on which a browser or a printed page shows a transparent picture."""
FULL = 65_535
ANIMATED = ("GIF", "PNG", "TIFF", "WEBP")
"""Formats with meaningful further frames; those in a camera's MPO are previews."""
WITH_A_RANGE = ("PNG", "PPM")
"""Formats that define the range of mode I: Pillow scales PPM to 65,535, and a PNG has at most 16 bits."""
WHITE_IS_ZERO, BITS_PER_SAMPLE, PHOTOMETRIC, ORIENTATION = 0, 258, 262, 274
REPLACE = "remove or replace the file [SL-picture-undecodable]"
MOST_NAMED = 10


class Opened(NamedTuple):
    """A decoded picture with its unusual properties."""

    rgb: Image.Image
    brightest: float | None
    """If the picture has more than 8 bits per channel: its largest value, 1 = white."""
    frames: bool
    """Whether the file has several frames; this is the first."""


class NoRange(Exception):
    """The numbers have no range, so the value of white is unknown."""


class Unreadable(DataMissing):
    """One picture that cannot be decoded.

    Args:
        data: the setting that names the data set.
        place: `train sample 7 (cat/7.png)`.
    """

    def __init__(self, data: str, place: str, why: str) -> None:
        super().__init__(f"{data}: {place} cannot be decoded: {why}; {REPLACE}")
        self.data, self.place, self.why = data, place, why


def name_all(found: list[Unreadable], looked: int) -> DataMissing:
    """Return one error that names the first ten pictures.

    Args:
        looked: number of pictures that were opened.
    """
    if len(found) == 1:
        return found[0]
    named = name_first([f"{one.place}: {one.why}" for one in found], MOST_NAMED)
    return DataMissing(
        f"{found[0].data}: {len(found)} of {looked} pictures cannot be decoded: {named}; {REPLACE}"
    )


class StoredPictures:
    """The undecoded pictures of one split.

    Args:
        cells: table of `datasets` whose only column holds bytes or paths, not decoded.
        column: name of that column.
        split, data: names in messages; `data` includes the setting that names the data set.
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
        """Return some of these pictures."""
        return StoredPictures(self.cells, self.column, self.split, self.data, self.indices[indices])

    def open(self, index: int) -> Opened:
        """Return the decoded picture.

        Raises:
            Unreadable: it cannot be decoded.
        """
        cell = None
        try:
            cell = self._cell(index)
            return open_picture(cell)
        except Exception as failure:  # Pillow raises a dozen classes for files that are not pictures
            file = cell["path"] if cell and cell["path"] else f"column {self.column!r}"
            place = f"{self.split} sample {self.indices[index]} ({file})"
            why = str(failure) or type(failure).__name__
            if isinstance(failure, UnidentifiedImageError):  # its text holds a memory address
                why = "it is not a picture of a known format"
            raise Unreadable(self.data, place, why) from failure

    def content(self, index: int) -> bytes:
        """Return the stored bytes of the picture; empty if they cannot be read."""
        try:
            cell = self._cell(index)
            return cell["bytes"] if cell["bytes"] is not None else Path(cell["path"]).read_bytes()
        except (OSError, TypeError):
            return b""

    def size(self, index: int) -> int:
        """Return the length of `content` in bytes, without reading a file."""
        try:
            cell = self._cell(index)
            return len(cell["bytes"]) if cell["bytes"] is not None else os.stat(cell["path"]).st_size
        except (OSError, TypeError):
            return 0

    def _cell(self, index: int) -> Any:
        return self.cells[int(self.indices[index])][self.column]


def store_pictures(table: Any, column: str, split: str, data: str) -> StoredPictures:
    """Return the undecoded pictures of a column; `datasets` would convert them to the mode that it declares.

    Args:
        split, data: names of the split and the data set in messages.

    Raises:
        ConfigError: the column does not hold pictures.
    """
    import datasets

    try:
        cells = table.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    except Exception as failure:
        raise ConfigError(
            f"TRAINER_IMAGE_COLUMN={column!r}: holds {table.features[column]}, not images (PIL, bytes or paths) "
            "[SL-image-column-kind]"
        ) from failure
    return StoredPictures(cells.with_format(None), column, split, data)


def open_picture(cell: Mapping[str, Any] | None) -> Opened:
    """Decode a cell of a table of `datasets`: its `bytes`, else the file at `path`; apply its EXIF orientation.

    Raises:
        NoRange: the numbers cannot be converted to 8 bits.
        Exception: any error of Pillow for files that are not pictures.
    """
    if cell is None or (cell["bytes"] is None and cell["path"] is None):
        raise ValueError("the cell is null [SL-picture-null]")
    with Image.open(cell["path"] if cell["bytes"] is None else BytesIO(cell["bytes"])) as opened:
        picture: Image.Image = opened
        frames = picture.format in ANIMATED and getattr(picture, "is_animated", False)
        tiles = getattr(picture, "tile", None) if picture.format == "PNG" else None
        raw_mode = (
            str(tiles[0][3]) if tiles else ""
        )  # storage of a pixel, such as `L;2`; available only before `load`
        picture.load()
        orientation, brightest = picture.getexif().get(ORIENTATION), None
        transparent = _find_transparent(picture, raw_mode)
        if picture.mode.startswith("I") or picture.mode == "F":
            picture, brightest = _divide_by_range(picture)
        rgb = _paste_on_background(picture, transparent)
        if orientation:
            rgb.getexif()[ORIENTATION] = orientation
            rgb = ImageOps.exif_transpose(rgb)
        return Opened(rgb, brightest, frames)


def _divide_by_range(picture: Image.Image) -> tuple[Image.Image, float]:
    tags = getattr(picture, "tag_v2", {})
    if picture.mode == "F" or (picture.mode == "I" and picture.format not in WITH_A_RANGE):
        kind = "floating-point numbers" if picture.mode == "F" else "signed or 32-bit integers"
        raise NoRange(
            f"it holds {kind} (mode {picture.mode}), which do not define the value of white; "
            "expected 8 or 16 unsigned bits per channel [SL-picture-no-range]"
        )
    full = 2 ** tags[BITS_PER_SAMPLE][0] - 1 if BITS_PER_SAMPLE in tags else FULL
    values = np.asarray(picture).astype(np.int64).clip(0, full)
    if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:  # Pillow inverts only up to 8 bits
        values = full - values
    grey = Image.fromarray(((values * 510 + full) // (2 * full)).astype(np.uint8))
    grey.info = dict(picture.info)
    return grey, float(values.max(initial=0)) / full


def _find_transparent(picture: Image.Image, raw_mode: str) -> NDArray[np.bool_] | None:
    """Return the mask of pixels in the declared transparent colour, for modes without a palette.

    Pillow keeps that colour as stored in the file, but scales the pixels.
    """
    colour = picture.info.get("transparency")
    if colour is None or picture.mode not in ("1", "L", "RGB", "I;16", "I"):
        return None
    if raw_mode in ("L;2", "L;4"):
        colour *= 85 if raw_mode == "L;2" else 17
    if raw_mode == "RGB;16B":
        colour = tuple(value >> 8 for value in colour)
    pixels = np.asarray(picture)
    if picture.mode == "1":
        pixels, colour = pixels.astype(bool), bool(colour)
    same = pixels == np.asarray(colour)
    return same.all(axis=-1) if picture.mode == "RGB" else same


def _paste_on_background(picture: Image.Image, transparent: NDArray[np.bool_] | None) -> Image.Image:
    canvas = Image.new("RGB", picture.size, BACKGROUND)
    if transparent is not None:
        opaque = Image.fromarray(np.where(transparent, 0, 255).astype(np.uint8))
        canvas.paste(picture.convert("RGB"), mask=opaque)
        return canvas
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    layered = (picture.convert("LA") if picture.mode == "La" else picture).convert("RGBA")
    canvas.paste(layered, mask=layered)
    return canvas
