"""Every mode of pixels in a format that keeps it, against values worked out by hand."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from tests.codes import refuses
from tests.trainer.data.pictures import opened, save, table
from trainer.data.pictures import NoRange, open_picture

EDGE = 16
WHITE = (255, 255, 255)
PALETTE = [0, 0, 0, 200, 30, 40, 10, 20, 250]
# mode, format: the left half, the right half, and what both are as RGB
DRAWN = {
    ("1", "png"): (0, 255, (0, 0, 0), WHITE),
    ("L", "png"): (40, 200, (40, 40, 40), (200, 200, 200)),
    ("LA", "png"): ((9, 0), (100, 128), WHITE, (177, 177, 177)),  # 100 x 128 / 255 + 127
    ("P", "gif"): (1, 2, (200, 30, 40), (10, 20, 250)),
    ("PA", "tiff"): ((1, 0), (2, 128), WHITE, (132, 137, 252)),
    ("RGB", "tiff"): ((200, 30, 40), (10, 20, 250), (200, 30, 40), (10, 20, 250)),
    ("RGBA", "png"): ((200, 30, 40, 0), (200, 30, 40, 128), WHITE, (227, 142, 147)),
    ("CMYK", "tiff"): ((0, 255, 255, 0), (255, 0, 0, 55), (255, 0, 0), (0, 200, 200)),
    ("YCbCr", "tiff"): ((76, 85, 255), (29, 255, 107), (254, 0, 0), (0, 0, 254)),
    ("LAB", "tiff"): ((0, 128, 128), (138, 209, 198), (0, 0, 0), (255, 0, 0)),
    ("I;16", "png"): (65535, 32896, WHITE, (128, 128, 128)),
    ("I;16B", "tiff"): (257, 0, (1, 1, 1), (0, 0, 0)),
}
LOSSY = ("YCbCr", "LAB")


def draw(mode: str, left, right) -> Image.Image:
    if mode.startswith("I;16"):
        values = np.full((EDGE, EDGE), left, ">u2" if mode == "I;16B" else "<u2")
        values[:, EDGE // 2 :] = right
        return Image.frombytes(mode, (EDGE, EDGE), values.tobytes())
    picture = Image.new(mode, (EDGE, EDGE), left)
    picture.paste(Image.new(mode, (EDGE // 2, EDGE), right), (EDGE // 2, 0))
    if mode in ("P", "PA"):
        picture.putpalette(PALETTE)
    return picture


def encode(picture: Image.Image, kind: str, **more) -> bytes:
    content = io.BytesIO()
    picture.save(content, kind, **more)
    return content.getvalue()


def png(depth: int, colour: int, row: bytes, key: bytes) -> bytes:
    """EDGE equal rows, and the colour that is transparent; Pillow writes few depths."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", EDGE, EDGE, depth, colour, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress((b"\0" + row) * EDGE))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"tRNS", key) + rows + chunk(b"IEND", b"")


def tiff(bits: int, photometric: int, row: bytes, signed: bool = False) -> bytes:
    """EDGE equal rows of one channel; Pillow writes neither 12 bits nor white as 0."""
    content = row * EDGE
    tags = {256: EDGE, 257: EDGE, 258: bits, 259: 1, 262: photometric, 273: 8, 277: 1, 278: EDGE}
    tags |= {279: len(content), 339: 2 if signed else 1}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    head = b"II*\0" + struct.pack("<I", 8 + len(content))
    return head + content + struct.pack("<H", len(tags)) + entries + bytes(4)


def halves(left: bytes, right: bytes, times: int = EDGE // 2) -> bytes:
    return left * times + right * times


ANIMATED = encode(
    Image.new("RGB", (EDGE, EDGE), "red"), "gif", save_all=True,
    append_images=[Image.new("RGB", (EDGE, EDGE), "blue")],
)  # fmt: skip
BY_HAND = {
    "a transparent colour": (encode(draw("P", 1, 2), "gif", transparency=1), (WHITE, (10, 20, 250))),
    "alphas of a palette": (
        encode(draw("P", 1, 2), "png", transparency=bytes([255, 0, 128])),
        (WHITE, (132, 137, 252)),
    ),
    "grey, 8 bits, 40 is transparent": (png(8, 0, halves(b"\x28", b"\xc8"), b"\0\x28"), (WHITE, (200,) * 3)),
    "grey, 2 bits, 1 is transparent": (png(2, 0, halves(b"\x55", b"\xaa", 2), b"\0\1"), (WHITE, (170,) * 3)),
    "grey, 1 bit, 0 is transparent": (png(1, 0, b"\xff\0", b"\0\0"), (WHITE, WHITE)),
    "RGB, 16 bits, one is transparent": (
        png(16, 2, halves(b"\1\1\2\2\3\3", b"\4\4\5\5\6\6"), b"\1\1\2\2\3\3"),
        (WHITE, (4, 5, 6)),
    ),
    "12 bits": (tiff(12, 1, b"\xff\xff\xff" * 4 + b"\x80\x88\x08" * 4), (WHITE, (128,) * 3)),
    "16 bits, 0 is white": (tiff(16, 0, halves(b"\0\0", b"\xff\xff")), (WHITE, (0, 0, 0))),
    "8 bits, 0 is white": (tiff(8, 0, halves(b"\0", b"\xff")), (WHITE, (0, 0, 0))),
    "the first of several frames": (ANIMATED, ((255, 0, 0), (255, 0, 0))),
}


def test_pictures_of_all_modes_look_as_they_should():
    cells = {cell: (encode(draw(cell[0], *row[:2]), cell[1]), row[2:]) for cell, row in DRAWN.items()}
    for what, (content, wanted) in (cells | BY_HAND).items():
        found = np.asarray(open_picture({"bytes": content, "path": None}).rgb)
        found = found[EDGE // 2, [EDGE // 4, 3 * EDGE // 4]].astype(int)
        assert np.abs(found - wanted).max() <= (5 if what[0] in LOSSY else 0), what


@pytest.mark.parametrize(
    "content",
    [
        encode(Image.new("F", (EDGE, EDGE), 0.5), "tiff"),
        encode(Image.new("I", (EDGE, EDGE), 9), "tiff"),
        tiff(16, 1, bytes(2 * EDGE), signed=True),
    ],
    ids=["float", "int32", "signed 16 bits"],
)
def test_numbers_without_a_range_are_refused(content):
    with refuses(NoRange, "SL-picture-no-range"):
        open_picture({"bytes": content, "path": None})


@pytest.mark.parametrize(
    ("contents", "lines"),
    [
        ([encode(draw("I;16", 4095, 7), "png")] * 4, 1),  # 12 bits in 16
        ([encode(draw("I;16", 4096, 7), "png")] * 4, 0),
        ([tiff(12, 1, b"\xff\xff\xff" * 4 + bytes(12))] * 4, 0),
        ([encode(draw("L", 7, 7), "png"), encode(draw("L", 9, 9), "png")] * 2, 1),
        ([encode(draw("L", 7, 8), "png")] + [encode(draw("L", 9, 9), "png")] * 3, 0),
        ([ANIMATED] * 4 + [encode(draw("L", 7, 8), "png")] * 2, 1),
    ],
    ids=["dark", "a sixteenth", "12 bits", "flat", "one is not flat", "frames"],
)
def test_what_is_odd_of_all_pictures_is_one_line(tmp_path, contents, lines):
    rows = table(contents, [index % 3 for index in range(len(contents))])
    assert len(opened(save(tmp_path / "d", train=rows, validation=rows, test=rows), EDGE).notes) == lines
