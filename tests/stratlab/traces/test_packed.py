"""What is taken back leaves no trace in the file, and what stays is one sound gzip member."""

from __future__ import annotations

import gzip
import random
import zlib
from pathlib import Path

from stratlab.traces.packed import PackedFile


def test_what_is_taken_back_is_gone(tmp_path: Path) -> None:
    noise = random.Random(0).randbytes(1 << 20)  # does not stay in the packer's buffer
    path = tmp_path / "a.gz"
    with open(path, "wb") as file:
        packed = PackedFile(file)
        packed.write(b"begin ")
        first = packed.mark()
        packed.write(noise)
        packed.take_back(first)
        packed.write(b"middle " * 1000)
        second = packed.mark()
        packed.write(noise)
        packed.mark()
        packed.take_back(second)
        packed.write(b"end")
        packed.finish()
    assert gzip.decompress(path.read_bytes()) == b"begin " + b"middle " * 1000 + b"end"
    assert path.stat().st_size < 1000
    one = zlib.decompressobj(31)
    assert one.decompress(path.read_bytes()).endswith(b"end") and one.eof and not one.unused_data
