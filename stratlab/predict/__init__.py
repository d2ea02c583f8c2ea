"""Predict whether a run will fit its devices before anything is started.

    charts, or a model and GPUs ─▶ asking ─▶ answering ─▶ prediction ─▶ prediction_report, prediction_page
                                              │  counting: the trainer counts runs that no file answers
                                              └  advising: changes to try first, of those of remedies

stratlab_spec/memory has operations files, the choice of the file that answers, and a device's memory, as in the
trainer's pods.

`Prediction` is one strategy on one kind of device: its memory by cause, whether it fits, and changes to try first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from stratlab_spec.memory.extrapolation import HOST, Peak
from stratlab_spec.memory.prediction import Device, Verdict, count_groups
from stratlab_spec.memory.profiles import GIB, OperationsFile, Question
from stratlab_spec.memory.simulated import Simulated
from stratlab_spec.schedule import count_micro_batches

MOST_ROWS = 1 << 16
"""Larger micro-batches are not looked for."""
MOST_GUESSES = 8
"""Before the search for the largest micro-batch takes halves."""


FIELDS = (
    "name", "strategy", "model", "ranks", "micro_batch_size", "settings", "labels", "channels", "micro_batches",
    "verdict", "peak_gib", "on_device_gib", "device_gib", "largest_micro_batch_size", "counted_micro_batch_size",
    "advice", "window", "rank", "host_gib", "causes_gib", "at_most", "operations_file", "key", "versions",
)  # fmt: skip
"""Keys of an answer as JSON; a question without an answer has null for what is not known."""


@dataclass(frozen=True)
class Prediction:
    """The answer to a question.

    Attributes:
        host: the rank's host memory.
        smallest: memory with one row.
        largest: micro-batch that fits below the gate, up to MOST_ROWS; 0 = one row does not fit.
        advice: changes to try first; "" = none, or not computed yet.
        remedy: the run with these changes, if one is known to fit.
        idle: (name, reason) of each change that advice may propose and does not.
    """

    question: Question
    file: OperationsFile | Simulated
    device: Device
    peak: Peak
    host: Peak
    smallest: Peak
    verdict: Verdict
    largest: int
    advice: str = ""
    remedy: Prediction | None = None
    idle: tuple[tuple[str, str], ...] = ()

    @property
    def counted_rows(self) -> int:
        """Return the largest micro-batch that was counted; larger ones follow the line through the last two."""
        if isinstance(self.file, Simulated):
            return MOST_ROWS
        return max(sample.rows for sample in self.file.samples)

    @property
    def needs_gib(self) -> float:
        return self.device.needs_gib(self.peak.total)

    @property
    def is_upper_bound(self) -> bool:
        return self.file.is_upper_bound(self.question)

    def with_rows(self, rows: int) -> Prediction:
        """Return the answer to the same question with micro-batches of `rows`."""
        asked, file = self.question, self.file
        settings = {**asked.settings, "micro_batch_size": str(rows)}
        asked = replace(asked, rows=rows, settings=settings)
        held = file.peak(rows, asked.ranks, asked.layers)
        host = file.window(HOST, held.rank, rows, asked.ranks, asked.layers)
        verdict = self.device.judge(held.total)
        return replace(self, question=asked, peak=held, host=host, verdict=verdict)

    def say_needs(self, rows: int = 0) -> str:
        """Return `18.21 of 24 GiB`, on the device, with micro-batches of `rows`; 0 = the run's own."""
        if rows and rows != self.question.rows:
            return self.with_rows(rows).say_needs()
        return f"{self.show(self.needs_gib)} of {self.device.gib:g} GiB"

    def show(self, gib: float) -> str:
        """Return `9.80`, or `<= 9.80` for an upper bound."""
        return f"{'<= ' if self.is_upper_bound else ''}{gib:.{2 if gib >= 0.1 else 4}f}"

    def say_largest(self) -> str:
        """Return `6`, `167 (estimate)` beyond the counted sizes, or `65536 or more (estimate)` at the search's end."""
        more = " or more" if self.largest == MOST_ROWS else ""
        beyond = " (estimate)" if self.largest > self.counted_rows else ""
        return f"{self.largest}{more}{beyond}"

    def as_dict(self) -> dict[str, Any]:
        """Return the prediction for a file; GiB. Its causes sum to the peak."""
        question, file = self.question, self.file
        micro_batches = count_micro_batches(question.global_batch, question.rows, file.share(question.ranks))
        return {
            "name": question.name,
            "strategy": file.strategy,
            "model": file.model,
            "ranks": question.ranks,
            "micro_batch_size": question.rows,
            "settings": dict(file.settings),
            "labels": file.labels,
            "channels": file.channels,
            "micro_batches": micro_batches or None,  # unknown, several
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
            "operations_file": file.path.name,
            "key": file.key,
            "versions": dict(file.versions),
        }


def find_largest(peak_bytes: Callable[[int], int], device: Device) -> int:
    """Return the most rows of a micro-batch, at most MOST_ROWS, that fit; 0 = not even one.

    Memory grows nearly linearly with rows: the line through two questions names the next one. After a few, halves do.
    """
    fits, held = 1, peak_bytes(1)
    if device.judge(held) is not Verdict.FITS:
        return 0
    too_many, guess, asked = MOST_ROWS + 1, 2, 0
    while fits + 1 < too_many:
        if asked > MOST_GUESSES:
            guess = (fits + too_many) // 2
        rows = min(max(guess, fits + 1), too_many - 1)
        found = peak_bytes(rows)
        slope = max(1.0, (found - held) / (rows - fits))
        if device.judge(found) is Verdict.FITS:
            fits, held = rows, found
        else:
            too_many = rows
        guess = fits + int((device.most_bytes - held) / slope)
        asked += 1
    return fits


def predict(question: Question, file: OperationsFile | Simulated, device_gib: float) -> Prediction:
    """Return the answer of a file that answers `question` (OperationsFile.misses), without advice."""
    device = Device(device_gib, count_groups(file, question.ranks))

    def peak(rows: int) -> Peak:
        return file.peak(rows, question.ranks, question.layers)

    held = peak(question.rows)
    largest = find_largest(lambda rows: peak(rows).total, device)
    host = file.window(HOST, held.rank, question.rows, question.ranks, question.layers)
    verdict = device.judge(held.total)
    if verdict is Verdict.FITS:  # smaller ones may need more, for then a step has several
        largest = max(largest, question.rows)
    return Prediction(question, file, device, held, host, peak(1), verdict, largest)
