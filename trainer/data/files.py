"""Any picture that Pillow opens, as RGB with 8 bits per channel.

1, L, P, RGB, CMYK, YCbCr, LAB, HSV    converted by Pillow
LA, La, PA, RGBA, RGBa, tRNS           composited on BACKGROUND: colours below full transparency mean nothing
I;16, I of PNG and PPM                 divided by their range (65,535; of a TIFF by its own bits per sample)
I of others, F                         refused: nothing says which number is white

The pictures of a split as they are stored: files, or bytes inside a table. Without torch.

Which files of a folder hold data, and that none of them is left out in silence; of text and of pictures.

Which split is which, by the names that people give them, and what the codes of a file's classes mean there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.wording import name_first

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


READERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}
TABLES = (".csv", ".tsv")
DATA = (*READERS, *TABLES, ".ndjson", ".arrow", ".xlsx", ".xls", ".feather", ".pickle", ".pkl")
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
OTHERS = ("config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")
"""What `datasets` takes for no data beside data."""
MOST_FILES_NAMED = 3


def check_unread(named: str, folder: Path) -> None:
    """That none of its data files is left out, as `datasets` does beside files of another kind or of named splits.

    A folder of images is not looked at: what lies beside them is theirs.

    Raises:
        DataMissing: naming those that are not.
    """
    import datasets

    listed = datasets.load_dataset_builder(str(folder)).config.data_files or {}
    read = [Path(file) for files in listed.values() for file in files]
    known = {os.path.realpath(file) for file in read}
    unread = [f for f in list_files(folder) if is_data(f) and os.path.realpath(f) not in known]
    if unread and all(map(is_data, read)) and not _tells_files(folder):
        raise DataMissing(
            f"{named}: {name_files(folder, unread)} would not be read beside {name_files(folder, sorted(read))}; "
            "expected files of one kind, and either all named after their split (train, validation, test) or none "
            "[SL-data-files-unread]"
        )


def _tells_files(folder: Path) -> bool:
    """Whether a data card says which files make up which split."""
    card = folder / "README.md"
    return card.is_file() and "data_files:" in card.read_text(errors="replace")


def list_files(folder: Path) -> Iterator[Path]:
    """Every file that `datasets` would look at, sorted within its folder."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        for name in sorted(names):
            if not name.startswith((".", "__")) and name not in OTHERS:
                yield Path(parent, name)


def is_data(file: Path) -> bool:
    """Whether a file holds rows, packed or not, in a form that is read or in another one."""
    suffix = file.suffix.lower()
    return suffix in DATA or (suffix in PACKED and Path(file.stem).suffix.lower() in DATA)


def name_files(folder: Path, files: Iterable[Path]) -> str:
    """The first of them, relative to `folder`."""
    return name_first([os.path.relpath(file, folder) for file in files], MOST_FILES_NAMED)


USUAL = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


def usual_name(name: str) -> str:
    """train, validation or test; "" for a name that means none of them."""
    return next((usual for usual, names in USUAL.items() if name.lower() in names), "")


def choose_splits(tables: Mapping[str, Any], data: str) -> dict[str, Any]:
    """The tables that a run uses, as train, validation and test; a single table is the train split.

    Args:
        data: what the data set is called in sentences.

    Raises:
        DataMissing: several tables and none for training, two tables for one split, or a table without rows.
    """
    if len(tables) == 1:
        found = {"train": next(iter(tables.values()))}
    else:
        found = {}
        for name, table in tables.items():
            usual = usual_name(name)
            if usual in found and name != usual and usual not in tables:
                raise DataMissing(
                    f"{data}: two splits are called {usual}: {', '.join(tables)}; expected one [SL-split-twice]"
                )
            if usual and (name == usual or usual not in tables):
                found[usual] = table
    if "train" not in found:
        raise DataMissing(
            f"{data}: has no split train, which is learnt; found {', '.join(tables)} [SL-split-train-absent]"
        )
    if empty := [split for split, table in found.items() if not len(table)]:
        raise DataMissing(
            f"{data}: split {empty[0]!r} has no samples; remove it, or fill it [SL-split-empty]"
        )
    return found


def find_unused(tables: Mapping[str, Any], used: Mapping[str, Any]) -> list[str]:
    """Names of the tables that are none of the splits."""
    taken = {id(table) for table in used.values()}
    return [name for name, table in tables.items() if id(table) not in taken]


def find_split_folders(path: Path) -> dict[str, str] | None:
    """{split: pattern of its files} of a folder whose splits are called `Train` or `TEST`, which `datasets` does not
    read as splits; None where it needs no help."""
    folders = [each.name for each in sorted(path.iterdir()) if each.is_dir() and usual_name(each.name)]
    if all(name == name.lower() for name in folders):
        return None
    return {usual_name(name): f"{name}/**" for name in folders}


def load_with_own_names(path: Path, data: str) -> dict[str, Any]:
    """The tables of a folder of data files, each with its own files' names of classes.

    `datasets` gives all splits the names of the first file, whatever the others' codes mean.

    Raises:
        DataMissing: files of one split that give one code two names.
    """
    import datasets

    patterns = find_split_folders(path)
    source = datasets.load_dataset(str(path), data_files=patterns)
    files = datasets.load_dataset_builder(str(path), data_files=patterns).config.data_files or {}
    tables = dict(source)
    for split, table in source.items():
        mine = [str(file) for file in files.get(split, ()) if str(file).endswith(".parquet")]
        kinds = [_read_classes(file) for file in mine]
        if any(kind != kinds[0] for kind in kinds[1:]):
            other = next(file for file, kind in zip(mine, kinds, strict=True) if kind != kinds[0])
            raise DataMissing(
                f"{data}: split {split!r}: {mine[0]} and {other} number their classes differently; write them anew "
                "with one list of names [SL-split-classes-differ]"
            )
        if kinds and any(table.features[name] != kind for name, kind in kinds[0].items()):
            tables[split] = datasets.load_dataset("parquet", data_files={split: mine}, split=split)
    return tables


def _read_classes(file: str) -> dict[str, Any]:
    """Columns of a parquet file that hold classes by code, as the file itself says."""
    import datasets

    lazily = datasets.load_dataset("parquet", data_files=[file], split="train", streaming=True)
    return {
        name: kind for name, kind in (lazily.features or {}).items() if isinstance(kind, datasets.ClassLabel)
    }


def describe_unused(data: str, unused: list[str]) -> Iterator[str]:
    """One line where a run leaves tables out."""
    if unused:
        yield f"{data}: a run uses train, validation and test; not used: {', '.join(unused)}"
