"""Read a trace file in pieces of whole events, so that memory stays bounded for any content.

`read_blocks` unpacks, `read_head` returns the part before the events, and `split_events` cuts between events. It looks
for the text that stands between the first two events, and lets the decoder verify each cut of another writer than
Kineto. If a cut is wrong, it scans: it masks strings and counts brackets with numpy, which takes five times as long. A
file above the limits is refused before it fills the memory.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 512 << 10  # with larger blocks the decoded events do not fit into the processor's cache
SCAN_BYTES = 256 << 10  # numpy temporarily needs up to 20 times this size
EVENTS_KEY = b'"traceEvents"'
NO_EVENTS = "lacks traceEvents [SL-trace-no-events]"
BARE_LIST = re.compile(rb"(\xef\xbb\xbf)?\s*\[")
BARE = b"{ }"  # head of a file that is only the list of events; no other file's head has this space
NO_TEXT = "is not text: a binary trace, such as Perfetto's or Nsight Systems', not torch.profiler's [SL-trace-binary]"
EVENTS = re.compile(rb'"traceEvents"\s*:\s*(\[|[^\s\[])')
INDENTED = re.compile(rb"\s*?(\r?\n[ \t]*)\{(\r?\n[ \t]*)\"")  # the first event
KINETO_INDENT = b"\n  ", b"\n    "
COMPACT = re.compile(rb"\},\s{0,9}\{\"")  # between two events
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
FIRST_BYTES = {  # first bytes of other formats -> description
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
    b"PK\x03\x04": "a ZIP archive: name it .zip, or unpack it",
    b"\xfd7zXZ": "packed with xz: unpack it, or pack it with gzip",
    b"\x28\xb5\x2f\xfd": "packed with zstd: unpack it, or pack it with gzip",
    b"BZh": "packed with bzip2: unpack it, or pack it with gzip",
    b"SQLite format 3": "an SQLite database, as Nsight Systems exports one, not a trace of torch.profiler",
}
DEEPEST = 200  # nested brackets; Kineto's reach 6

_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_QUOTE, _OPENING = ord('"'), ord("{")
_STEP = np.zeros(256, np.int8)
_STEP[[ord("{"), ord("[")]], _STEP[[ord("}"), ord("]")]] = 1, -1
_IS_MARK = (_STEP != 0) | (np.arange(256) == _QUOTE)


class TraceError(ValueError):
    """Report why a file cannot be analysed, as half a sentence for the report."""


def build_not_json(why: object) -> TraceError:
    """Build the error for a file that is cut off or invalid JSON at some place."""
    return TraceError(f"truncated or not JSON ({why}) [SL-trace-not-json]")


def say_unreadable(why: object) -> str:
    """Describe a file that the system refuses to read."""
    return f"is not readable ({why}) [SL-trace-unreadable]"


@dataclass(frozen=True)
class Limits:
    """Limit the size of one trace file."""

    raw_bytes: int = 4 << 30  # on the disk, and after unpacking
    ratio: int = 200  # unpacked to packed size; Kineto traces reach 18
    ratio_from_bytes: int = 64 << 20  # small files may be more repetitive
    head_bytes: int = 4 << 20  # before the first event
    piece_bytes: int = 8 << 20  # one event, and the part after the last one


LIMITS = Limits()


def read_blocks(path: Path, limits: Limits = LIMITS) -> Iterator[bytes]:
    """Yield the file's bytes, unpacked if the content (not the name) is gzip.

    Raises:
        TraceError: not a regular file, damaged gzip, or above the limits.
        OSError: not readable.
    """
    # without O_NONBLOCK, opening a pipe waits for its writer
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as raw:
        status = os.fstat(raw.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise TraceError("not a regular file [SL-trace-irregular]")
        if status.st_size > limits.raw_bytes:
            raise TraceError(
                f"takes more than {limits.raw_bytes / 2**30:g} GiB on the disk [SL-trace-too-large]"
            )
        is_packed = raw.peek(2)[:2] == b"\x1f\x8b"
        file = gzip.GzipFile(fileobj=raw) if is_packed else raw
        read_bytes = 0
        while True:
            try:
                block = file.read(BLOCK_BYTES)
            except (EOFError, zlib.error, gzip.BadGzipFile) as failure:
                raise TraceError(f"damaged or truncated gzip ({failure}) [SL-gzip-damaged]") from failure
            if not block:
                return
            read_bytes += len(block)
            if read_bytes > limits.raw_bytes:
                raise TraceError(
                    f"holds more than {limits.raw_bytes / 2**30:g} GiB [SL-trace-unpacked-large]"
                )
            if read_bytes > max(limits.ratio_from_bytes, status.st_size * limits.ratio):
                raise TraceError(f"unpacks to more than {limits.ratio} times its size [SL-gzip-bomb]")
            yield block


def read_head(path: Path, limits: Limits = LIMITS) -> bytes:
    """Return the part before the events as a JSON object: rank, world size, devices.

    Raises:
        TraceError: no events, damaged, or above the limits.
        OSError: not readable.
    """
    return next(split_events(path, limits))


def split_events(path: Path, limits: Limits = LIMITS) -> Iterator[bytes]:
    """Yield the pieces of `split_placed` without their places."""
    return (piece for _, piece in split_placed(path, limits))


def split_placed(path: Path, limits: Limits = LIMITS) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of the file, each with the offset from a place in it to the place in the unpacked file.

    First the head as a JSON object, then JSON arrays of events; last an object with the remaining events.

    The last piece is everything after the last cut, `{"traceEvents": [...], ...}`: it decodes only if the file is
    complete and has no text after its end. A byte order mark is left out. All other text passes unchanged, and the
    reader checks whether it is JSON. A file that is only the list of events is read as well.

    Raises:
        TraceError: no events, damaged, or above the limits.
        OSError: not readable.
    """
    blocks = read_blocks(path, limits)
    marked, head, rest, at = _read_head(blocks, limits)
    yield marked, head
    border, scan = _find_border(rest), _Scan()
    buffer, block = b"", rest
    while True:
        found = border.cut(buffer, block) if border else None
        if found is None or (not found[0] and len(found[1]) > 4 * BLOCK_BYTES):
            border, found = None, scan.cut(buffer + block, at)
        piece, left = found
        if piece:
            yield at - 1, piece
        buffer, at = left, at + len(buffer) + len(block) - len(left)
        if len(buffer) > limits.piece_bytes:
            raise TraceError(
                f"holds more than {limits.piece_bytes >> 20} MiB in one event or after the events [SL-event-too-large]"
            )
        if not (block := next(blocks, b"")):
            break
    if EVENTS.search(buffer):
        raise TraceError("holds traceEvents twice [SL-trace-events-twice]")
    before = b"{" + EVENTS_KEY + b": ["
    yield at - len(before), before + buffer + (b"}" if head == BARE else b"")


def _read_head(blocks: Iterator[bytes], limits: Limits) -> tuple[int, bytes, bytes, int]:
    """Return the offset of the head, the head, the bytes read after the opening bracket, and their offset."""
    buffer, searched = next(blocks, b""), 0
    for start, what in FIRST_BYTES.items():
        if buffer.startswith(start):
            raise TraceError(f"is {what} [SL-trace-other-format]")
    if (bare := BARE_LIST.match(buffer)) and b'"ph"' in buffer:
        return 0, BARE, buffer[bare.end() :], bare.end()
    while not (found := EVENTS.search(buffer, searched)):
        if len(buffer) > limits.head_bytes:
            raise _build_large_head(limits)
        # the next block may continue the key and the white space after it
        key = buffer.rfind(EVENTS_KEY, searched)
        searched = max(0, key if key >= 0 else len(buffer) - len(EVENTS_KEY))
        block = next(blocks, None)
        if block is None:
            binary = b"\0" in buffer[:BLOCK_BYTES]
            raise TraceError(NO_TEXT if binary else NO_EVENTS if buffer else "empty file [SL-file-empty]")
        buffer += block
    if found[1] != b"[":
        raise TraceError("its traceEvents are not a list [SL-trace-events-no-list]")
    marked = len(BYTE_ORDER_MARK) if buffer.startswith(BYTE_ORDER_MARK) else 0
    head = buffer[marked : found.start()].rstrip().removesuffix(b",")
    if len(head) > limits.head_bytes:
        raise _build_large_head(limits)
    _Scan().find_cut(head)  # only to check its depth: a recursive reader would fail
    return marked, head + b"}", buffer[found.end() :], found.end()


def _build_large_head(limits: Limits) -> TraceError:
    return TraceError(f"lacks traceEvents in its first {limits.head_bytes >> 20} MiB [SL-trace-head-large]")


@dataclass(frozen=True)
class _Border:
    """The text between two events: it begins with white space and `}`, then come `comma` and the next event."""

    text: bytes
    comma: int
    is_certain: bool  # Kineto's own formatting, in which nothing else looks like it

    def cut(self, before: bytes, block: bytes) -> tuple[bytes, bytes] | None:
        """Return the whole events of both texts as a list, empty without a border, and the text that follows them.

        None if the text before the last border is not a list of events.
        """
        at = block.rfind(self.text)
        if at < 0:
            before, block = b"", before + block
            if (at := block.rfind(self.text)) < 0:
                return b"", block
        end = at + self.comma
        piece = b"".join((b"[", before, memoryview(block)[:end], b"]"))
        return (piece, block[end + 1 :]) if self.is_certain or _is_list(piece) else None


_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _is_list(piece: bytes) -> bool:
    """Return whether the text is a list; a wrong cut, in a text or inside brackets, leaves it without its end."""
    try:
        _decode_list(piece)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _find_border(text: bytes) -> _Border | None:
    """Return the border by the first event of `text`; None if it shows none."""
    if indented := INDENTED.match(text):
        before, inside = indented.groups()
        return _Border(before + b"}," + before + b"{", len(before) + 1, (before, inside) == KINETO_INDENT)
    found = COMPACT.search(text)
    return _Border(found[0], 1, False) if found else None


class _Scan:
    """Find the starts of top-level events in text of any formatting; each byte is scanned once.

    The text grows at its end and is cut at `find_cut`, so that it always begins inside the list of events.
    """

    def __init__(self) -> None:
        self.seen = 0  # bytes of the text that were scanned
        self.depth = 1  # open brackets: 1 = between events, 0 = after the list
        self.in_string = False
        self.start = -1  # of the last event, in the text

    def find_cut(self, text: bytes) -> int:
        """Return the start of the last event; -1 before the second event."""
        while self.depth and self._look(text[self.seen : self.seen + SCAN_BYTES]):
            pass
        cut = self.start
        if cut > 0:
            self.start, self.seen = 0, self.seen - cut
        return cut

    def cut(self, text: bytes, at: int) -> tuple[bytes, bytes]:
        """Return the whole events of `text` as a list, empty before the second, and the text that follows them.

        Args:
            at: of the text in the file.

        Raises:
            TraceError: there is no comma between two events.
        """
        if (cut := self.find_cut(text)) <= 0:
            return b"", text
        comma = len(text[:cut].rstrip()) - 1
        if comma < 0:
            return b"", text[cut:]
        if not comma or text[comma] != ord(","):
            raise build_not_json(f"no comma between two events, at byte {at + cut}")
        return b"".join((b"[", memoryview(text)[:comma], b"]")), text[cut:]

    def _look(self, new: bytes) -> int:
        """Scan `new` and return the number of scanned bytes: all, except half an escape at the end."""
        masked = _ESCAPED.sub(b"__", new) if b"\\" in new else new
        marks = np.frombuffer(masked.removesuffix(b"\\"), np.uint8)
        at: NDArray[np.int64] = np.flatnonzero(_IS_MARK[marks])
        kinds = marks[at]
        quotes = np.cumsum(kinds == _QUOTE, dtype=np.int32) + self.in_string
        outside = (quotes & 1) == 0
        depth = np.cumsum(np.where(outside, _STEP[kinds], 0), dtype=np.int32) + self.depth
        closed = np.flatnonzero(depth == 0)
        inside = len(at) if not len(closed) else int(closed[0])
        if inside and int(depth[:inside].max()) > DEEPEST:
            raise TraceError(f"nests more than {DEEPEST} brackets [SL-trace-nested]")
        starts = np.flatnonzero((depth[:inside] == 2) & (kinds[:inside] == _OPENING) & outside[:inside])
        if len(starts):
            self.start = self.seen + int(at[starts[-1]])
        if len(at):
            self.in_string, self.depth = bool(quotes[-1] & 1), 0 if len(closed) else int(depth[-1])
        self.seen += len(marks)
        return len(marks)
