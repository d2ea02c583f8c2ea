"""One line per epoch: how long it took, and what was learnt in it."""

from __future__ import annotations

from typing import Any


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
