"""Any picture that Pillow opens, as RGB with 8 bits per channel.

1, L, P, RGB, CMYK, YCbCr, LAB, HSV    converted by Pillow
LA, La, PA, RGBA, RGBa, tRNS           composited on BACKGROUND: colours below full transparency mean nothing
I;16, I of PNG and PPM                 divided by their range (65,535; of a TIFF by its own bits per sample)
I of others, F                         refused: nothing says which number is white
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

BACKGROUND = (255, 255, 255)
"""White, as a browser or a printed page shows a transparent picture."""
FULL = 65_535
ANIMATED = ("GIF", "PNG", "TIFF", "WEBP")
"""Formats whose further frames may be meant. Those of a camera's MPO are previews."""
WITH_A_RANGE = ("PNG", "PPM")
"""Formats that say what their mode I means: Pillow scales PPM to 65,535, and a PNG has at most 16 bits."""
WHITE_IS_ZERO, BITS_PER_SAMPLE, PHOTOMETRIC, ORIENTATION = 0, 258, 262, 274


class Opened(NamedTuple):
    """A decoded picture, and what was odd about it."""

    rgb: Image.Image
    brightest: float | None
    """Of more than 8 bits per channel: the largest value, 1 = white."""
    frames: bool
    """It has several, of which this is the first."""


class NoRange(Exception):
    """Numbers without a range: which of them is white is not known."""


def open_picture(cell: Mapping[str, Any] | None) -> Opened:
    """A picture as a table of `datasets` stores it: `bytes`, else the file at `path`.

    Raises:
        NoRange: numbers that cannot become 8 bits.
        Exception: whatever Pillow raises for what is no picture.
    """
    if cell is None or (cell["bytes"] is None and cell["path"] is None):
        raise ValueError("the cell is null [SL-picture-null]")
    with Image.open(cell["path"] if cell["bytes"] is None else BytesIO(cell["bytes"])) as picture:
        return read_picture(picture)


def read_picture(picture: Image.Image) -> Opened:
    """An opened picture as RGB, turned upright by its EXIF orientation.

    Raises:
        NoRange: as `open_picture`.
    """
    frames = picture.format in ANIMATED and getattr(picture, "is_animated", False)
    raw_mode = _read_raw_mode(picture)
    picture.load()
    orientation, brightest = picture.getexif().get(ORIENTATION), None
    key = _find_transparent(picture, raw_mode)
    if picture.mode.startswith("I") or picture.mode == "F":
        picture, brightest = _divide_by_range(picture)
    rgb = _paste_on_background(picture, key)
    if orientation:
        rgb.getexif()[ORIENTATION] = orientation
        rgb = ImageOps.exif_transpose(rgb)
    return Opened(rgb, brightest, frames)


def _read_raw_mode(picture: Image.Image) -> str:
    """How a PNG stores a pixel, as `L;2`; known until it is loaded."""
    tiles = getattr(picture, "tile", None) if picture.format == "PNG" else None
    return str(tiles[0][3]) if tiles else ""


def _divide_by_range(picture: Image.Image) -> tuple[Image.Image, float]:
    tags = getattr(picture, "tag_v2", {})
    if picture.mode == "F" or (picture.mode == "I" and picture.format not in WITH_A_RANGE):
        kind = "floating-point numbers" if picture.mode == "F" else "signed or 32-bit integers"
        raise NoRange(
            f"it holds {kind} (mode {picture.mode}), which have no range that says what is white; "
            "expected 8 or 16 unsigned bits per channel [SL-picture-no-range]"
        )
    full = 2 ** tags[BITS_PER_SAMPLE][0] - 1 if BITS_PER_SAMPLE in tags else FULL
    values = np.asarray(picture).astype(np.int64).clip(0, full)
    if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:  # Pillow inverts up to 8 bits alone
        values = full - values
    grey = Image.fromarray(((values * 510 + full) // (2 * full)).astype(np.uint8))
    grey.info = dict(picture.info)
    return grey, float(values.max(initial=0)) / full


def _find_transparent(picture: Image.Image, raw_mode: str) -> NDArray[np.bool_] | None:
    """Where a picture has the one colour that is declared as transparent, of modes without a palette.

    Pillow keeps that colour as it stands in the file, and the pixels as it has scaled them.
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
        canvas.paste(
            picture.convert("RGB"), mask=Image.fromarray(np.where(transparent, 0, 255).astype(np.uint8))
        )
        return canvas
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    layered = (picture.convert("LA") if picture.mode == "La" else picture).convert("RGBA")
    canvas.paste(layered, mask=layered)
    return canvas
