"""A gzip file that can take back its end: of what one rank wrote, either everything stays or nothing."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import BinaryIO

HEADER = b"\x1f\x8b\x08" + bytes(5) + b"\x04\xff"  # no name, no time: equal content gives equal files
LEVEL = 1  # level 6 takes six times as long and saves a quarter


@dataclass(frozen=True)
class _Mark:
    position: int
    checksum: int
    size: int


class PackedFile:
    """Writes one gzip member into `file`, which must be seekable and stays open."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._file.write(HEADER)
        self._start(_Mark(file.tell(), 0, 0))

    def _start(self, mark: _Mark) -> None:
        self.checksum, self.size = mark.checksum, mark.size
        self._deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)

    def write(self, data: bytes) -> None:
        """Packs and appends."""
        self.checksum = zlib.crc32(data, self.checksum)
        self.size += len(data)
        self._file.write(self._deflate.compress(data))

    def mark(self) -> _Mark:
        """A place to which `take_back` can return. What follows does not refer to what stands before it."""
        self._file.write(self._deflate.flush(zlib.Z_FULL_FLUSH))
        return _Mark(self._file.tell(), self.checksum, self.size)

    def take_back(self, mark: _Mark) -> None:
        """Forgets everything that was written since `mark`."""
        self._file.seek(mark.position)
        self._file.truncate()
        self._start(mark)

    def finish(self) -> None:
        """Ends the member: checksum and length."""
        self._file.write(self._deflate.flush(zlib.Z_FINISH))
        self._file.write(struct.pack("<II", self.checksum, self.size & 0xFFFFFFFF))
