"""Reads a trace file in pieces of whole events, so that memory stays bounded whatever the file holds.

Kineto ends every event with "\\n  },\\n": there the file is cut. Any other formatting stays in one piece.
A file that unpacks to more than the limits is refused before it fills the memory.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 8 << 20
EVENT_END = b"\n  },\n"
EVENTS_KEY = b'"traceEvents"'


class TraceError(ValueError):
    """Why a file cannot be analysed, as half a sentence for the report."""


@dataclass(frozen=True)
class Limits:
    """What one trace file may cost."""

    raw_bytes: int = 4 << 30  # after unpacking
    ratio: int = 200  # unpacked to packed size; Kineto traces reach 18
    ratio_from_bytes: int = 64 << 20  # small files may be more repetitive
    head_bytes: int = 16 << 20  # before the first event
    piece_bytes: int = 512 << 20  # one piece that cannot be cut


LIMITS = Limits()


def read_blocks(path: Path, limits: Limits = LIMITS) -> Iterator[bytes]:
    """The file's bytes, unpacked if it is gzip (told by its content, not by its name).

    Raises:
        TraceError: damaged gzip, or above the limits.
    """
    packed_bytes = path.stat().st_size
    with open(path, "rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        file = gzip.GzipFile(fileobj=raw) if is_packed else raw
        read_bytes = 0
        while True:
            try:
                block = file.read(BLOCK_BYTES)
            except (EOFError, zlib.error, gzip.BadGzipFile) as failure:
                raise TraceError(f"damaged or truncated gzip ({failure})") from failure
            if not block:
                return
            read_bytes += len(block)
            if read_bytes > limits.raw_bytes:
                raise TraceError(f"holds more than {limits.raw_bytes / 2**30:g} GiB")
            if read_bytes > max(limits.ratio_from_bytes, packed_bytes * limits.ratio):
                raise TraceError(f"unpacks to more than {limits.ratio} times its size")
            yield block


def read_head(path: Path, limits: Limits = LIMITS) -> bytes:
    """The JSON object that stands before the events: rank, world size, devices.

    Raises:
        TraceError: no events, or no JSON.
    """
    return next(split_events(path, limits))


def split_events(path: Path, limits: Limits = LIMITS) -> Iterator[bytes]:
    """First the head as a JSON object, then JSON arrays of events; last an object with the remaining events.

    The last piece is everything from the last cut on, `{"traceEvents": [...], ...}`: it decodes only if the
    file is complete.

    Raises:
        TraceError: no events, damaged, or above the limits.
    """
    blocks = read_blocks(path, limits)
    buffer = bytearray()
    while (key := buffer.find(EVENTS_KEY)) < 0 or (opening := buffer.find(b"[", key)) < 0:
        block = next(blocks, None)
        if block is None or len(buffer) > limits.head_bytes:
            raise TraceError("holds no traceEvents" if buffer or block else "empty file")
        buffer += block
    yield bytes(buffer[:key]).rstrip().rstrip(b",") + b"}"
    del buffer[: opening + 1]
    searched = 0
    while True:
        cut = buffer.rfind(EVENT_END, searched)
        if cut >= 0:
            yield b"[" + buffer[: cut + 4] + b"]"
            del buffer[: cut + 5]
        searched = len(buffer)
        if len(buffer) > limits.piece_bytes:
            raise TraceError(f"not in Kineto's formatting and above {limits.piece_bytes >> 20} MiB")
        block = next(blocks, None)
        if block is None:
            break
        buffer += block
    yield b"{" + EVENTS_KEY + b": [" + buffer
