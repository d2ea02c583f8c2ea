"""Report progress while a run trains: a line every few seconds, one per epoch, and a rank that is slow.

`Stragglers` finds a rank that is slower than the others for longer than chance explains. All ranks leave a step
together, so the step time does not identify it. The time in which a rank did not wait does: its data, and its forward
pass minus the waiting in collectives. On a CPU the watchdog's thread samples that waiting. On a device it is not
visible, and only the data times count.

    chunk      3 steps; the minimum of both times for each rank.
    slow       in one of them 1.6 times the median of the other ranks, and the difference is 15 % of a step.
    straggler  slow in 3 chunks in a row

On a busy machine every rank is slow now and then, but not in nine consecutive steps. Three chunks are whole at most
11 steps after a rank becomes slow, and written 9 steps after that, for any `log_every`: 20 in all. A device's
times are read after a write and sent with the next one: 30 there.
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
    """Sum up the steps of an epoch; a batch that crosses an epoch's end counts for the epoch that it ends.

    Args:
        samples: of an epoch, over all ranks.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._began: float | None = None  # its beginning was not seen, as after a restart inside it
        self._seen = 0
        self._loss = 0.0
        self._correct: float | None = 0.0

    def add(
        self, step: int, ended: float, took_ms: float, batch: int, loss: float, correct: float | None
    ) -> dict[str, Any] | None:
        """Add one step, in order; return the numbers of the epoch if it was the last step of a whole epoch.

        Args:
            ended: seconds since 1970.
            batch: samples of the step over all ranks, the same in every step.
            loss: mean over them.
            correct: number of correct predictions; None if they are not counted.
        """
        before, after = ((step - 1) * batch) // self._samples, (step * batch) // self._samples
        # a first step seen, after a restart, may be the first of an epoch
        is_first_seen = self._began is None and not self._seen
        if step == 1 or (is_first_seen and ((step - 1) * batch) % self._samples < batch):
            self._start(ended - took_ms / 1e3)
        self._seen += batch
        self._loss += loss * batch
        self._correct = None if correct is None or self._correct is None else self._correct + correct
        if after == before:
            return None
        found: dict[str, Any] | None = None
        if self._began is not None:
            took_s, loss = ended - self._began, self._loss / self._seen
            found = {"epoch": after, "epoch_time_s": took_s, "epoch_train_loss": loss}
            if self._correct is not None:
                found["epoch_train_accuracy_pct"] = 100.0 * self._correct / self._seen
        self._start(ended)
        return found

    def _start(self, at: float) -> None:
        self._began, self._seen, self._loss, self._correct = at, 0, 0.0, 0.0


CHUNK = 3
MOST_CHUNKS = 4
"""At one write of the metrics: of 10 steps, and those that were left before."""
RATIO, SHARE_PCT, IN_A_ROW = 1.6, 15.0, 3
MANY = 32


@dataclass(frozen=True)
class Straggler:
    """A slow rank, since a step."""

    rank: int
    since_step: int
    ratio: float
    """Its own time over the other ranks'."""
    share_pct: float
    """Its delay, in percent of a step."""


class Chunk(NamedTuple):
    """Times of one rank, from one step on."""

    step: int
    data_ms: float
    own_ms: float
    step_ms: float


class OwnTimes:
    """This rank's times, combined into chunks; all ranks have the same number."""

    def __init__(self) -> None:
        self._steps: list[Chunk] = []
        self._unsettled: list[tuple[int, float, float, float]] = []

    def add(self, step: int, data_ms: float, forward_ms: float, step_ms: float) -> None:
        """Add a step; the share of waiting in its forward pass is not known yet."""
        self._unsettled.append((step, data_ms, forward_ms, step_ms))

    def settle(self, waited_share: float) -> None:
        """Settle the forward passes since the last call.

        Args:
            waited_share: their share of waiting for other ranks; NaN = not known.
        """
        self._steps += [
            Chunk(step, data_ms, data_ms + forward_ms * (1.0 - waited_share), step_ms)
            for step, data_ms, forward_ms, step_ms in self._unsettled
        ]
        self._unsettled = []

    def take(self) -> list[Chunk]:
        """Return the whole chunks, the oldest first."""
        found: list[Chunk] = []
        while len(self._steps) >= CHUNK and len(found) < MOST_CHUNKS:
            chunk, self._steps = self._steps[:CHUNK], self._steps[CHUNK:]
            steps, data_ms, own_ms, step_ms = zip(*chunk, strict=True)
            least_ms = min(own_ms) if all(map(math.isfinite, own_ms)) else math.nan
            found.append(Chunk(steps[0], min(data_ms), least_ms, statistics.median(step_ms)))
        return found


class Stragglers:
    """Judge the chunks of all ranks."""

    def __init__(self) -> None:
        self.worst: Straggler | None = None
        """The slowest of the whole run, by its share."""
        self._slow: dict[int, list[Straggler]] = {}  # for each rank that is slow now

    def add(
        self, first_step: int, data_ms: Sequence[float], own_ms: Sequence[float], step_ms: float
    ) -> list[Straggler]:
        """Return one chunk of every rank; those that have just become stragglers."""
        slow = {s.rank: s for times in (own_ms, data_ms) for s in _find_slow(first_step, times, step_ms)}
        self._slow = {rank: [*self._slow.get(rank, []), s] for rank, s in slow.items()}
        found = []
        for rank, chunks in self._slow.items():
            if len(chunks) < IN_A_ROW:
                continue
            ratio, share_pct = (
                statistics.median(getattr(s, name) for s in chunks[-IN_A_ROW:])
                for name in ("ratio", "share_pct")
            )
            seen = Straggler(rank, chunks[0].since_step, ratio, share_pct)
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


class ProgressLog:
    """Log the newest metrics line, at most every five seconds, and always the last one."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._began = self._shown = time.monotonic()
        self._first_step: int | None = None

    def show(self, line: dict[str, Any]) -> None:
        """Show a train line of metrics.jsonl."""
        now, step = time.monotonic(), line["step"]
        if self._first_step is None:
            self._first_step, self._began = step, now
        if now - self._shown < EVERY_S and step < self._steps:
            return
        self._shown = now
        done = step - self._first_step
        step_s = (now - self._began) / done if done else line["step_time_ms"] / 1e3
        step_ms, left_s = line["step_time_ms"], step_s * (self._steps - step)
        log.info(
            f"step {step}/{self._steps}  loss {line['loss']:.4f}  {line['samples'] / step_ms * 1e3:.0f} samples/s  "
            f"{step_ms:.1f} ms/step  about {int(left_s)} s left"
        )
