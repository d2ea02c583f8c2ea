"""One line per epoch: how long it took, and what was learnt in it.

A rank that is slower than the others for longer than chance would have it.

All ranks leave a step together, so the time of a step names nobody. What names one is the time in which a rank did not
wait: its data, and with it its forward pass without what it waited in collectives (on a CPU, where the witness has seen
enough of it; on a device nobody sees the waiting, and there data alone tell).

    chunk      3 steps; of each rank the smallest of both: what each of them takes at least
    slow       in one of them 1.6 times the median of the other ranks, and the difference is 15 % of a step
    straggler  slow in 3 chunks in a row

On a busy machine every rank is slow now and then, and none in nine steps one after the other. Whenever it begins, three
chunks are whole 11 steps later at most, and written 9 steps after that, whatever `log_every` is: 20 in all. A device's
times are read behind a write and travel with the next one: 30 there.

What a person sees in `kubectl logs`: a line every few seconds with step, loss, speed and time left.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class EpochCount:
    """Sums up the steps of an epoch. A batch that crosses into the next epoch counts with the one that it ends.

    Args:
        samples: of an epoch, over all ranks.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._began: float | None = (
            None  # None: the epoch's beginning was not seen, as after a restart inside it
        )
        self._seen = 0
        self._loss = 0.0
        self._correct: float | None = 0.0

    def add(
        self, step: int, ended: float, took_ms: float, batch: int, loss: float, correct: float | None
    ) -> dict[str, Any] | None:
        """One step, in order; gives the numbers of the epoch if it was the last one of a whole epoch.

        Args:
            ended: seconds since 1970.
            batch: samples of the step over all ranks, the same in every step.
            loss: mean over them.
            correct: how many of them were told right; None where that is not counted.
        """
        before, after = ((step - 1) * batch) // self._samples, (step * batch) // self._samples
        if step == 1 or self._begins_with(step, batch):
            self._start(ended - took_ms / 1e3)
        self._seen += batch
        self._loss += loss * batch
        self._correct = None if correct is None or self._correct is None else self._correct + correct
        if after == before:
            return None
        found = self._describe(after, ended) if self._began is not None else None
        self._start(ended)
        return found

    def _begins_with(self, step: int, batch: int) -> bool:
        """Whether a first step seen, after a restart, is the first of an epoch."""
        return self._began is None and not self._seen and ((step - 1) * batch) % self._samples < batch

    def _start(self, at: float) -> None:
        self._began, self._seen, self._loss, self._correct = at, 0, 0.0, 0.0

    def _describe(self, epoch: int, ended: float) -> dict[str, Any]:
        assert self._began is not None
        found = {
            "epoch": epoch,
            "epoch_time_s": ended - self._began,
            "epoch_train_loss": self._loss / self._seen,
        }
        if self._correct is not None:
            found["epoch_train_accuracy_pct"] = 100.0 * self._correct / self._seen
        return found


CHUNK = 3
MOST_CHUNKS = 4
"""At one write of the metrics: of 10 steps, and those that were left before."""
RATIO, SHARE_PCT, IN_A_ROW = 1.6, 15.0, 3
MANY = 32


@dataclass(frozen=True)
class Straggler:
    """One rank, since one step."""

    rank: int
    since_step: int
    ratio: float
    """Of its own time to that of the others."""
    share_pct: float
    """Of a step, by which it is slower."""


class Chunk(NamedTuple):
    """Times of one rank, from one step on."""

    step: int
    data_ms: float
    own_ms: float
    step_ms: float


class OwnTimes:
    """This rank's times, made into chunks; all ranks have equally many."""

    def __init__(self) -> None:
        self._steps: list[Chunk] = []
        self._unsettled: list[tuple[int, float, float, float]] = []

    def add(self, step: int, data_ms: float, forward_ms: float, step_ms: float) -> None:
        """Of its forward pass is not known yet how much was waiting."""
        self._unsettled.append((step, data_ms, forward_ms, step_ms))

    def settle(self, waited_share: float) -> None:
        """Of all forward passes since the last call so much was waited for other ranks; NaN = not known."""
        self._steps += [
            Chunk(step, data_ms, data_ms + forward_ms * (1.0 - waited_share), step_ms)
            for step, data_ms, forward_ms, step_ms in self._unsettled
        ]
        self._unsettled = []

    def take(self) -> list[Chunk]:
        """The whole chunks, the oldest first."""
        found: list[Chunk] = []
        while len(self._steps) >= CHUNK and len(found) < MOST_CHUNKS:
            chunk, self._steps = self._steps[:CHUNK], self._steps[CHUNK:]
            known = all(math.isfinite(step.own_ms) for step in chunk)
            found.append(
                Chunk(
                    chunk[0].step,
                    min(step.data_ms for step in chunk),
                    min(step.own_ms for step in chunk) if known else math.nan,
                    statistics.median(step.step_ms for step in chunk),
                )
            )
        return found


class Stragglers:
    """Judges the chunks of all ranks."""

    def __init__(self) -> None:
        self.worst: Straggler | None = None
        """Of the whole run, by its share."""
        self._slow: dict[int, list[Straggler]] = {}  # of each rank that is slow now

    def add(
        self, first_step: int, data_ms: Sequence[float], own_ms: Sequence[float], step_ms: float
    ) -> list[Straggler]:
        """One chunk of every rank; those that have just become stragglers."""
        slow = {s.rank: s for times in (own_ms, data_ms) for s in _find_slow(first_step, times, step_ms)}
        self._slow = {rank: [*self._slow.get(rank, []), s] for rank, s in slow.items()}
        found = []
        for rank, chunks in self._slow.items():
            if len(chunks) < IN_A_ROW:
                continue
            last = chunks[-IN_A_ROW:]
            seen = Straggler(
                rank,
                chunks[0].since_step,
                statistics.median(s.ratio for s in last),
                statistics.median(s.share_pct for s in last),
            )
            if self.worst is None or seen.share_pct > self.worst.share_pct:
                self.worst = seen
            if len(chunks) == IN_A_ROW:
                found.append(seen)
        return found


def _find_slow(first_step: int, own_ms: Sequence[float], step_ms: float) -> list[Straggler]:
    if len(own_ms) < 2 or step_ms <= 0 or not all(map(math.isfinite, own_ms)):
        return []
    whole = statistics.median(own_ms)
    found = []
    for rank, own in enumerate(own_ms):
        if len(own_ms) > MANY and own < RATIO * whole:  # without it the median is about the same
            continue
        others = statistics.median([*own_ms[:rank], *own_ms[rank + 1 :]])
        share_pct = 100.0 * (own - others) / step_ms
        if own >= RATIO * others and share_pct >= SHARE_PCT:
            found.append(Straggler(rank, first_step, own / others if others > 0 else math.inf, share_pct))
    return found


EVERY_S = 5.0

log = logging.getLogger("trainer")


class Progress:
    """Logs the newest metrics line, not more often than every five seconds, and the last one always."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._began = self._shown = time.monotonic()
        self._first_step: int | None = None

    def show(self, line: dict[str, Any]) -> None:
        """`line` is a train line of metrics.jsonl."""
        now, step = time.monotonic(), line["step"]
        if self._first_step is None:
            self._first_step, self._began = step, now
        if now - self._shown < EVERY_S and step < self._steps:
            return
        self._shown = now
        done = step - self._first_step
        step_s = (now - self._began) / done if done else line["step_time_ms"] / 1e3
        log.info(
            "step %d/%d  loss %.4f  %.0f samples/s  %.1f ms/step  about %d s left",
            step,
            self._steps,
            line["loss"],
            line["samples"] / line["step_time_ms"] * 1e3,
            line["step_time_ms"],
            step_s * (self._steps - step),
        )
