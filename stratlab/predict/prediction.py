"""One strategy on one kind of device: what it will hold and for what, whether that fits, and what to change first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from stratlab.predict.device_memory import GIB, Device, Verdict
from stratlab.predict.extrapolation import Peak
from stratlab.predict.operations_file import OperationsFile
from stratlab.predict.question import Question

MOST_ROWS = 1 << 16
"""Larger micro-batches are not looked for."""
AXES_BESIDE_DATA = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")


@dataclass(frozen=True)
class Prediction:
    """The answer.

    Attributes:
        host: what the rank keeps in host memory.
        smallest: what one row holds.
        largest: micro-batch that fits below the gate, up to MOST_ROWS; 0 = not even one row does.
        advice: what to change first; "" = nothing, or nobody has asked yet.
        idle: (name, reason) of what advice was allowed to propose, and does not.
    """

    question: Question
    file: OperationsFile
    device: Device
    peak: Peak
    host: Peak
    smallest: Peak
    verdict: Verdict
    largest: int
    advice: str = ""
    idle: tuple[tuple[str, str], ...] = ()

    @property
    def counted_rows(self) -> int:
        """The largest micro-batch that was counted; what lies beyond follows the line through the last two."""
        return max(sample.rows for sample in self.file.samples)

    @property
    def needs_gib(self) -> float:
        return self.device.needs_gib(self.peak.total)

    @property
    def micro_batches(self) -> int | None:
        """Of a step; None = not said, several."""
        rows = self.question.rows * self.file.share(self.question.ranks)
        return self.question.global_batch // rows or None

    def say_needs(self, rows: int = 0) -> str:
        """`18.21 of 24 GiB`, on the device, with micro-batches of `rows`; 0 = those of the run."""
        if rows and rows != self.question.rows:
            peak = self.file.peak(rows, self.question.ranks, self.question.layers)
            return replace(self, question=replace(self.question, rows=rows), peak=peak).say_needs()
        return f"{self.show(self.needs_gib)} of {self.device.gib:g} GiB"

    def show(self, gib: float) -> str:
        """Return `9.80`, or `<= 9.80` where it is an upper bound."""
        return f"{'<= ' if self.is_upper_bound else ''}{gib:.{2 if gib >= 0.1 else 4}f}"

    def say_largest(self) -> str:
        """`6`, `167 (5.2 x counted)` beyond what was counted, `65536 or more (...)` where nobody has looked further."""
        more = " or more" if self.largest == MOST_ROWS else ""
        times = self.largest / self.counted_rows
        return f"{self.largest}{more}" + (
            f" ({times:.{1 if times < 100 else 0}f} x counted)" if times > 1 else ""
        )

    def as_dict(self) -> dict[str, Any]:
        """For a file; GiB. Causes add up to the peak."""
        return {
            "name": self.question.name,
            "strategy": self.file.strategy,
            "model": self.file.model,
            "ranks": self.question.ranks,
            "micro_batch_size": self.question.rows,
            "settings": dict(self.file.settings),
            "labels": self.file.labels,
            "channels": self.file.channels,
            "micro_batches": self.micro_batches,
            "verdict": str(self.verdict),
            "peak_gib": round(self.peak.total / GIB, 4),
            "on_device_gib": round(self.needs_gib, 4),
            "device_gib": self.device.gib,
            "largest_micro_batch_size": self.largest,
            "counted_micro_batch_size": self.counted_rows,
            "advice": self.advice,
            "window": self.peak.window,
            "rank": self.peak.rank,
            "host_gib": round(self.host.total / GIB, 4),
            "causes_gib": {name: round(size / GIB, 4) for name, size in self.peak.causes.items()},
            "at_most": self.is_upper_bound,
            "operations_file": self.file.path.name,
            "key": self.file.key,
            "versions": dict(self.file.versions),
        }

    @property
    def is_upper_bound(self) -> bool:
        """Counted with several micro-batches in a step, where the run has one: then gradients of an earlier one are
        not there yet."""
        return self.file.accumulates and not self.file.accumulates_for(self.question)


def predict(question: Question, file: OperationsFile, device_gib: float) -> Prediction:
    """The answer of a file that answers `question` (OperationsFile.misses), without advice."""
    device = Device(device_gib, count_groups(file, question.ranks))

    def peak(rows: int) -> Peak:
        return file.peak(rows, question.ranks, question.layers)

    found = peak(question.rows)
    verdict = device.judge(found.total)
    largest = _find_largest(lambda rows: device.judge(peak(rows).total) is Verdict.FITS)
    host = file.host(found, question.rows, question.ranks, question.layers)
    return Prediction(question, file, device, found, host, peak(1), verdict, largest)


def count_groups(file: OperationsFile, ranks: int) -> int:
    """Communicators of a rank: one of all ranks, and one per axis where there are several."""
    if ranks == 1:
        return 0
    several = [name for name in AXES_BESIDE_DATA if file.axes.get(name, 1) > 1]
    return 1 + (len(several) if len(several) > 1 else 0)


def _find_largest(fits: Callable[[int], bool]) -> int:
    if not fits(1):
        return 0
    high = 1
    while high < MOST_ROWS and fits(2 * high):
        high *= 2
    if high == MOST_ROWS:
        return MOST_ROWS
    low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
