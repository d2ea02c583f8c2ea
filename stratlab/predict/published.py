"""Published throughput of other authors, and the rows nearest to a question.

    published.csv (written by `python -m benchmarks.published`) ─▶ read_published ─▶ find_nearest ─▶ expecting

MFU of every row is tokens or images per second and GPU x FLOPs of one of them / the card's dense 16-bit peak in CARDS.
The column `rule` says how the FLOPs were found: shape, printed or macs (benchmarks/published/sources.py).
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from math import log2
from pathlib import Path

from stratlab_spec.step_time.kernels import CARDS

TABLE = Path(__file__).with_name("published.csv")
OF_IMAGES = ("transformer", "convolutions", "depthwise")
"""Families whose rates are not compared with each other: they differ by more than ten times."""

MOST_ROWS, MOST_OF_SOURCE = 9, 3
FARTHEST = 4.0
OTHER_STRATEGY, OTHER_KIND, OTHER_FAMILY = 0.5, 1.5, 1.0
KINDS = {
    **dict.fromkeys(("single", "ddp"), "whole"),
    **dict.fromkeys(("zero1", "zero2"), "optimizer sharded"),
    **dict.fromkeys(("fsdp", "hsdp", "zero3", "zeropp"), "weights sharded"),
}
"""Strategy -> kind; nd has its own."""


@dataclass(frozen=True)
class PublishedRow:
    """The fastest of the measurements of one source that differ only in layout, batch and machine.

    Attributes:
        parameters_b: 0 = the source does not give them.
        length: tokens of a row, or pixels of an image's side.
        method: full or lora.
        micro_batch: "" = not given.
        per_s: tokens or images per second and GPU.
        slowest_per_s: of the same measurements.
        rows: their number.
        gflop: of a token or an image.
        rule: how it was found.
    """

    source: str
    model: str
    family: str
    parameters_b: float
    length: int
    card: str
    gpus: int
    strategy: str
    method: str
    recompute: str
    micro_batch: str
    per_s: float
    slowest_per_s: float
    rows: int
    gflop: float
    rule: str

    @property
    def mfu_pct(self) -> float:
        return find_mfu_pct(self.per_s, self.gflop, self.card)


def find_mfu_pct(per_s: float, gflop: float, card: str) -> float:
    """Return MFU by the one rule of this table.

    Args:
        per_s: tokens or images per second and GPU.
        gflop: of one of them.
    """
    return 100 * per_s * gflop / 1e3 / CARDS[card].peak_tflops


@dataclass(frozen=True)
class PublishedTable:
    """All rows, and where each source was published."""

    rows: tuple[PublishedRow, ...]
    sources: dict[str, str]


@cache
def read_published() -> PublishedTable:
    """Return the table of this package."""
    described: list[str] = []
    lines: list[str] = []
    for line in TABLE.read_text("utf-8").splitlines():
        (described if line.startswith("#") else lines).append(line)
    sources = dict(line[2:].split(": ", 1) for line in described[1:])
    return PublishedTable(tuple(map(_read_row, csv.DictReader(lines))), sources)


def _read_row(line: Mapping[str, str]) -> PublishedRow:
    kinds: dict[str, type] = {"int": int, "float": float, "str": str}
    return PublishedRow(
        **{each.name: kinds[str(each.type)](line[each.name]) for each in fields(PublishedRow)}
    )


@dataclass(frozen=True)
class Sought:
    """What published rows are compared with; fields as of PublishedRow; strategy "" = any."""

    family: str
    gflop: float
    length: int
    card: str
    gpus: int
    strategy: str
    method: str

    def distance(self, row: PublishedRow) -> float:
        """Return how far a row is: factors of two in FLOPs, half of those in GPUs, a quarter of those in the length,
        and steps for another strategy, another kind of it, or another family of language models.
        """
        sizes = (self.gflop, row.gflop, 1.0), (self.gpus, row.gpus, 0.5), (self.length, row.length, 0.25)
        found = sum(weight * abs(log2(mine / theirs)) for mine, theirs, weight in sizes)
        if self.strategy and row.strategy != self.strategy:
            kinds = (KINDS.get(name, name) for name in (self.strategy, row.strategy))
            found += OTHER_STRATEGY if len({*kinds}) == 1 else OTHER_KIND
        return found + OTHER_FAMILY * (row.family != self.family)

    def allows(self, row: PublishedRow) -> bool:
        """Return whether the row counts the same: tokens or images, of one family; all weights trained, or adapters."""
        images = self.family in OF_IMAGES or row.family in OF_IMAGES
        return row.method == self.method and (row.family == self.family or not images)


def find_nearest(rows: Iterable[PublishedRow], sought: Sought) -> list[PublishedRow]:
    """Return the nearest rows, nearest first: of the same card if there are any, else of others.

    A source gives at most MOST_OF_SOURCE of them, so that one matrix of many layouts does not fill the list.
    """
    near = [row for row in rows if sought.allows(row) and sought.distance(row) <= FARTHEST]
    near = [row for row in near if row.card == sought.card] or near
    found: list[PublishedRow] = []
    counts: Counter[str] = Counter()
    for row in sorted(near, key=sought.distance):
        if counts[row.source] < MOST_OF_SOURCE and len(found) < MOST_ROWS:
            counts[row.source] += 1
            found.append(row)
    return found
