"""Recorded work: the operations of one micro-batch and what the host does for them; sizes are products of symbols.

`python -m trainer.memory_estimation.record_operations` adds it to the files of recorded steps (memory/recording.py),
so that one file serves memory and time.

    settings ─▶ find_work ─▶ RecordedWork ─▶ measure (sizes as numbers) ─▶ kernels and host work by segment
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple

from stratlab_spec.memory.recording import FOLDER, WORK, NotRecorded, parse_size
from stratlab_spec.step_time.kernels import (
    ATTENTION,
    ATTENTION_BACKWARD,
    BACKWARD_FLOPS,
    PACKED_ATTENTION,
    PACKED_ATTENTION_BACKWARD,
    PRODUCT,
    PRODUCT_FP32,
    Kernel,
)


class RecordedOperation(NamedTuple):
    """One operation; sizes as `recording.parse_size` reads them."""

    kind: str
    launches: int
    factors: tuple[str, ...]
    """Their product is half of the FLOPs; of attention, see `_attention_flops`."""
    traffic: tuple[str, ...]
    """Bytes of each tensor."""
    accumulates: bool
    """Adds a gradient to an earlier micro-batch's."""


class HostWork(NamedTuple):
    """What the host does, as counts."""

    launches: float = 0
    products: float = 0
    further: float = 0
    """Launches of an operation after its first."""
    views: float = 0
    calls: float = 0
    """Python calls; one of a C function counts half."""
    packed: float = 0
    """Calls of packed attention, a custom operator in Python."""

    def plus(self, other: HostWork, times: float = 1) -> HostWork:
        """Return the sum with `times` x the other's; no count is below 0."""
        return HostWork(*(max(0.0, a + times * b) for a, b in zip(self, other, strict=True)))


class Segment(NamedTuple):
    """A part of a micro-batch."""

    rows: Sequence[RecordedOperation]
    host: Sequence[float]
    """As HostWork."""
    waits: int = 0
    """Times that the host waits for the device."""
    fused: Sequence[RecordedOperation] = ()
    """Of a layer: the operations as a compiler joins them."""


@dataclass(frozen=True)
class RecordedWork:
    """One micro-batch in one mode, by segments."""

    settings: Mapping[str, Any]
    segments: Mapping[str, Segment]
    _measured: dict[Any, dict[str, list[Kernel]]] = field(default_factory=dict, compare=False, repr=False)

    def measure(
        self, sizes: Mapping[str, int], loss: LossPieces, document: int, compiled: bool = False
    ) -> dict[str, list[Kernel]]:
        """Return the kernels of each segment; those that accumulate gradients under the segment's name and `+`.

        Args:
            loss: launches of a language model's loss.
            document: tokens of a document in packed rows.
            compiled: layers are.
        """
        key = *sizes.items(), loss, document, compiled
        if key not in self._measured:
            known: dict[tuple[RecordedOperation, bool], Kernel] = {}
            found: dict[str, list[Kernel]] = {}
            for name, segment in self.segments.items():
                outside = name.startswith("head")
                for row in (segment.fused if compiled else ()) or segment.rows:
                    if (row, outside) not in known:
                        known[row, outside] = _measure(row, sizes, loss if outside else ONE_PIECE, document)
                    found.setdefault(f"{name}+" if row.accumulates else name, []).append(known[row, outside])
            self._measured[key] = found
        return self._measured[key]

    def host(self, segment: str) -> HostWork:
        return HostWork(*self.segments[segment].host)


class LossPieces(NamedTuple):
    """Launches per operation on logits (trainer/models/chunked_cross_entropy.py)."""

    products: int
    others: int


ONE_PIECE = LossPieces(1, 1)


def count_pieces(tokens: int, chunk_tokens: int, rows_at_once: int) -> LossPieces:
    """Return the launches of a loss of this many tokens."""
    chunk = min(chunk_tokens, tokens)
    chunks = ceil(tokens / chunk)
    return LossPieces(chunks, chunks * ceil(chunk / rows_at_once))


def _measure(row: RecordedOperation, sizes: Mapping[str, int], loss: LossPieces, document: int) -> Kernel:
    factors = [parse_size(text).value(sizes) for text in row.factors]
    traffic = sum(parse_size(text).value(sizes) for text in row.traffic)
    flops = 2.0 * prod(factors) if factors else 0.0
    if row.kind in (ATTENTION, ATTENTION_BACKWARD):
        flops = _attention_flops(*factors)
    elif row.kind in (PACKED_ATTENTION, PACKED_ATTENTION_BACKWARD):
        tokens, heads, size = factors
        flops = _attention_flops(heads, tokens, document, size, 2)
    if row.kind in (ATTENTION_BACKWARD, PACKED_ATTENTION_BACKWARD):
        flops *= BACKWARD_FLOPS
    pieces = 1
    if any("V" in parse_size(text).symbols for text in (*row.factors, *row.traffic)):
        pieces = loss.products if row.kind in (PRODUCT, PRODUCT_FP32) else loss.others
    return Kernel(row.kind, flops, traffic, row.launches * pieces)


def _attention_flops(rows: int, queries: int, keys: int, size: int, halves: int) -> float:
    """Return the FLOPs with queries and keys in whole tiles of 64, and heads of 64 or 128.

    Args:
        rows: x heads.
        halves: 2 with a causal mask.
    """
    queries, keys = (-(-length // 64) * 64 for length in (queries, keys))
    return 4.0 * rows * queries * keys * (64 if size <= 64 else -(-size // 128) * 128) / halves


FIRST = ", first micro-batch"
"""Ends the name of a segment of a host record; the others are of the last micro-batch."""
Moved = Mapping[str, list[int]]
"""Kind -> [bytes, launches]."""


class HostRecord(NamedTuple):
    """What the host and the device do under one strategy, for a model of six layers, or a network of fixed ones."""

    strategy: str
    ranks: int
    segments: Mapping[str, tuple[list[float], int, Moved, Moved]]
    """Segment, or `optimizer` -> HostWork, waits, all operations, those inside a strategy's gathers and reductions."""
    weights: Mapping[str, list[int]]
    """`start`, `layer` or each layer's number, `head`, `all` -> [trained weights, their elements]."""


@cache
def read_work(path: Path) -> tuple[list[RecordedWork], list[HostRecord]]:
    """Return what `write_work` has written; nothing for a file without."""
    with gzip.open(path, "rt") as file:
        content = json.load(file).get(WORK)
    if content is None:
        return [], []
    sizes, kinds, parts = content["sizes"], content["kinds"], content["parts"]

    def unpack(row: list[Any]) -> RecordedOperation:
        kind, launches, factors, traffic, accumulates = row
        products, moved = (tuple(sizes[at] for at in group) for group in (factors, traffic))
        return RecordedOperation(kinds[kind], launches, products, moved, bool(accumulates))

    rows = [unpack(row) for row in content["rows"]]
    found = [
        RecordedWork(
            one["settings"],
            {
                name: Segment(
                    [rows[at] for at in parts[place]], host, waits, [rows[at] for at in parts[fused]]
                )
                for name, (place, host, waits, fused) in one["segments"].items()
            },
        )
        for one in content["modes"]
    ]
    hosts = [HostRecord(*one) for one in content["hosts"]]
    return found, hosts


def write_work(path: Path, modes: Sequence[RecordedWork], hosts: Sequence[HostRecord]) -> None:
    """Write the work of one family into its file; equal rows and parts once."""
    with gzip.open(path, "rt") as file:
        content = json.load(file)
    sizes: list[str] = []
    kinds: list[str] = []
    rows: list[list[Any]] = []
    parts: list[list[int]] = []
    packed = []

    def place(known: list[Any], item: Any) -> int:
        if item not in known:
            known.append(item)
        return known.index(item)

    def pack(row: RecordedOperation) -> list[Any]:
        groups = ([place(sizes, text) for text in group] for group in (row.factors, row.traffic))
        return [place(kinds, row.kind), row.launches, *groups, int(row.accumulates)]

    for mode in modes:
        segments = {
            name: [
                place(parts, [place(rows, pack(row)) for row in one.rows]),
                one.host,
                one.waits,
                place(parts, [place(rows, pack(row)) for row in one.fused]),
            ]
            for name, one in mode.segments.items()
        }
        packed.append({"settings": dict(mode.settings), "segments": segments})
    content[WORK] = {
        "sizes": sizes,
        "kinds": kinds,
        "rows": rows,
        "parts": parts,
        "modes": packed,
        "hosts": [list(one) for one in hosts],
    }
    data = json.dumps(content, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data, mtime=0))


def find_work(family: str, mode: Mapping[str, Any]) -> RecordedWork:
    """Return the recorded work of a family in this mode.

    Raises:
        NotRecorded: there is none; names the settings that differ from the nearest one.
    """
    path = FOLDER / f"{family}.json.gz"
    modes = read_work(path)[0] if path.is_file() else []
    best = ["no operations"]
    for one in modes:
        differs = [f"{name}={value}" for name, value in mode.items() if one.settings.get(name) != value]
        if not differs:
            return one
        best = min(best, differs, key=len) if best != ["no operations"] else differs
    raise NotRecorded(f"{family}: {', '.join(best)}")


def find_host(family: str, strategy: str, ranks: int) -> HostRecord:
    """Return what the host does under a strategy, on one rank or on several.

    Raises:
        NotRecorded: there is none.
    """
    found = [one for one in read_work(FOLDER / f"{family}.json.gz")[1] if one.strategy == strategy]
    alike = [one for one in found if (one.ranks > 1) == (ranks > 1)] or found
    if not alike:
        raise NotRecorded(f"{family}: the host's work under {strategy}")
    return alike[0]
