"""Merge the traces of all ranks into one file for Perfetto, piece by piece.

The file is for people: every analysis reads the ranks' own traces. merged_events.py changes the events and documents
the reasons. The file holds either all or none of a rank's events.

All ranks leave a collective together, even if one of them entered late. This shows how far the clocks of their hosts
differ. On one node the ends of an NCCL kernel agree within 1-7 us while the starts differ by milliseconds. gloo's ends
agree to about 150 us in the median, with outliers of 18 ms: below 1 ms the clocks are not corrected.
"""

from __future__ import annotations

import os
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from stratlab.traces.chunks import TraceError, say_unreadable, split_events
from stratlab.traces.merged_events import ABSENT, Renamed, clean, read_ns
from stratlab.traces.repair import NO_CLOCK, decode_head, decode_odd_piece, read_base_ns

LEVEL = 1  # level 6 needs six times as long and saves a quarter
GZIP = 16 + zlib.MAX_WBITS  # without name and time, so that equal content gives equal files


class PackedFile:
    """Write gzip into `file`, which must be seekable and stays open; can remove the end again."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._packer: Any = zlib.compressobj(LEVEL, wbits=GZIP)

    def write(self, data: bytes) -> None:
        """Pack and append."""
        self._file.write(self._packer.compress(data))

    def mark(self) -> tuple[int, Any]:
        """Return a position to which `take_back` can return once."""
        return self._file.tell(), self._packer.copy()

    def take_back(self, mark: tuple[int, Any]) -> None:
        """Remove everything written since `mark`."""
        position, self._packer = mark
        self._file.seek(position)
        self._file.truncate()

    def finish(self) -> None:
        """Write the remaining data, checksum and length."""
        self._file.write(self._packer.flush())


RAW_BYTES = 1 << 30  # of all ranks together: about the most that Perfetto opens in a browser
HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True)
class Merged:
    """Describe the merged file; `file`: None without a merged rank. `reason`: missing ranks and other remarks."""

    file: Path | None
    ranks: list[int]
    events: int  # without names of processes and threads
    flows: int  # ends of arrows
    bytes: int  # of the file
    reason: str


def build_unmerged(reason: str) -> Merged:
    """Describe a merge without a file."""
    return Merged(file=None, ranks=[], events=0, flows=0, bytes=0, reason=reason)


class _Time(msgspec.Struct, gc=False):
    ph: str = ""
    ts: Raw = ABSENT


class _TooMuch(Exception):
    """A rank exceeds the limit on all ranks."""


def merge_traces(
    files: dict[int, Path],
    out: Path,
    *,
    offsets_ns: dict[int, int],
    raw_bytes: int = RAW_BYTES,
    progress: Callable[[str], None] = lambda sentence: None,
) -> Merged:
    """Write `out` (gzip) under a temporary name and rename it; each rank is merged completely or not at all.

    Times count from a whole hour before the first event, so that a float64 of us keeps every nanosecond; the head's
    baseTimeNanoseconds holds this hour.

    Args:
        files: one decodable trace per rank.
        out: must not be in the folder of the traces, because it would count as one more rank.
        offsets_ns: subtracted from a rank's times (clocks.py); 0 if a rank is missing.
        raw_bytes: limit of all ranks together, unpacked; the lowest ranks that stay below are merged.

    Raises:
        OSError: `out` cannot be written.
    """
    problems: dict[int, str] = {}
    bases: dict[int, int] = {}
    starts: dict[int, int] = {}
    for rank, path in sorted(files.items()):
        try:
            bases[rank], first_ns = _find_start(path)
            starts[rank] = bases[rank] + first_ns - offsets_ns.get(rank, 0)
        except TraceError as failure:
            problems[rank] = str(failure)
    origin = (min(starts.values(), default=0) // HOUR_NS - 1) * HOUR_NS
    merged: list[Renamed] = []
    temporary = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(temporary, "wb") as raw:
            packed = PackedFile(raw)
            head = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": origin}
            packed.write(msgspec.json.encode(head | {"mergedTrace": True})[:-1] + b',"traceEvents":[\n')
            left = raw_bytes
            for rank in starts:
                renamed = Renamed(rank, bases[rank] - offsets_ns.get(rank, 0) - origin)
                mark = packed.mark()
                try:
                    left -= _write_rank(renamed, files[rank], packed, left, b",\n" if merged else b"")
                except TraceError as failure:
                    packed.take_back(mark)
                    problems[rank] = str(failure)
                except _TooMuch:
                    packed.take_back(mark)
                    why = f"beyond the limit of {raw_bytes / 2**20:.0f} MiB for all ranks [SL-merge-limit]"
                    problems |= {other: why for other in starts if other >= rank}
                    break
                else:
                    merged.append(renamed)
                    progress(f"merged rank {rank}: {renamed.events} events")
            packed.write(b"\n]" + b',"mergedRanks":' + msgspec.json.encode([r.rank for r in merged]) + b"}\n")
            packed.finish()
        if merged:
            os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
    return Merged(
        file=out if merged else None,
        ranks=[renamed.rank for renamed in merged],
        events=sum(renamed.events for renamed in merged),
        flows=sum(renamed.flows for renamed in merged),
        bytes=out.stat().st_size if merged else 0,
        reason=_explain(merged, problems, starts),
    )


def _find_start(path: Path) -> tuple[int, int]:
    """Return the file's base time and its first usable time, ns."""
    pieces = _read_pieces(path)
    value = decode_head(next(pieces)).get("baseTimeNanoseconds")
    base = read_base_ns(value)
    if value and not base:
        raise TraceError(NO_CLOCK)
    for piece in pieces:
        if (first := _find_first_ns(piece)) is not None:
            return base, first
    raise TraceError("lacks events with a time [SL-trace-no-time]")


def _find_first_ns(piece: bytes) -> int | None:
    """Return the earliest usable time in one piece of `split_events`.

    Raises:
        TraceError: not JSON.
    """
    events = decode_odd_piece(clean(piece), _Time)
    times = (read_ns(bytes(event.ts)) for event in events if event.ph != "M" and event.ts is not ABSENT)
    return min((ns for ns in times if ns is not None and ns > 0), default=None)


def _read_pieces(path: Path) -> Iterator[bytes]:
    try:
        yield from split_events(path)
    except OSError as failure:
        raise TraceError(say_unreadable(failure.strerror)) from failure


def _write_rank(renamed: Renamed, path: Path, packed: PackedFile, most_bytes: int, separator: bytes) -> int:
    """Write one rank and return its unpacked size."""
    if path.stat().st_size > most_bytes:
        raise _TooMuch
    pieces = _read_pieces(path)
    raw_bytes = len(next(pieces))
    for piece in pieces:
        raw_bytes += len(piece)
        if raw_bytes > most_bytes:
            raise _TooMuch
        if text := renamed.build(piece):
            packed.write(separator + text)
            separator = b",\n"
    packed.write(separator + renamed.build_tracks())
    return raw_bytes


def _explain(merged: list[Renamed], problems: dict[int, str], starts: dict[int, int]) -> str:
    sentences = [
        f"rank {rank} is missing in the merged file: {problem}" for rank, problem in sorted(problems.items())
    ]
    sentences += [
        f"rank {renamed.rank}: {renamed.left_out} events without a usable time are left out [SL-merge-untimed]"
        for renamed in merged
        if renamed.left_out
    ]
    begins = [starts[renamed.rank] for renamed in merged] or [0]
    if (apart := max(begins) - min(begins)) > HOUR_NS:
        sentences.append(f"the ranks begin {apart / HOUR_NS:.1f} h apart [SL-merge-apart]")
    return "; ".join(sentences)


SMALLEST_NS = 1_000_000
FEWEST_CALLS = 3


@dataclass(frozen=True)
class Clocks:
    """Hold the offsets that move all ranks to the clock of the lowest rank.

    Attributes:
        offsets_ns: per rank; 0 without a correction.
        aligned: True if a rank is corrected.
        residual_ns: largest over ranks: median distance of a collective's end from the rank's offset.
        matched: number of compared collectives.
    """

    offsets_ns: dict[int, int]
    aligned: bool
    residual_ns: int | None
    matched: int
    reason: str


def find_offsets(calls: dict[int, NDArray[np.int64]]) -> Clocks:
    """Return each rank's offset: the median over the collectives of (its end - the lowest rank's end).

    Args:
        calls: per rank the absolute end times, ns, of the same collectives in the same order.
    """
    zero = dict.fromkeys(sorted(calls), 0)
    lengths = {len(ends) for ends in calls.values()}
    assert len(lengths) <= 1, f"collectives are not matched: {lengths}"
    matched = lengths.pop() if lengths else 0
    if len(calls) < 2:
        return Clocks(zero, False, None, matched, "a single rank has no clock to compare with")
    if matched < FEWEST_CALLS:
        why = f"only {matched} collectives are in the traces of all ranks; at least {FEWEST_CALLS} are needed"
        return Clocks(zero, False, None, matched, why)

    reference = calls[min(calls)]
    measured = {rank: _median(calls[rank] - reference) for rank in zero}
    spread = {rank: _median(np.abs(calls[rank] - reference - measured[rank])) for rank in zero}
    # if a rank's collectives disagree, its offset is void: the ranks did not leave them together
    large = {rank: offset for rank, offset in measured.items() if abs(offset) >= SMALLEST_NS}
    clear = {rank: offset for rank, offset in large.items() if abs(offset) > 2 * spread[rank]}
    reason = _explain_clocks(measured, large, clear)
    return Clocks(zero | clear, bool(clear), max(spread.values()), matched, reason)


def _median(values: NDArray[np.int64]) -> int:
    """Return the lower median: a mean in float64 would lose nanoseconds."""
    middle = (len(values) - 1) // 2
    return int(np.partition(values, middle)[middle])


def _explain_clocks(measured: dict[int, int], large: dict[int, int], clear: dict[int, int]) -> str:
    sentences = []
    if clear:
        moved = ", ".join(f"rank {rank} by {offset / 1e6:+.3f} ms" for rank, offset in clear.items())
        sentences.append(f"clocks are ahead of rank {min(measured)}'s and corrected: {moved}")
    if vague := [rank for rank in large if rank not in clear]:
        ranks = ", ".join(map(str, vague))
        sentences.append(f"rank {ranks} is not corrected: its collectives disagree by as much as they differ")
    if not large:
        largest = max(abs(offset) for offset in measured.values())
        sentences.append(
            f"clocks agree within {largest / 1e6:.3f} ms; differences below 1 ms are not corrected"
        )
    return "; ".join(sentences)
