"""Writes metrics.jsonl. A step costs the loop a few list appends; lines are built every `log_every` steps.

Nothing here talks to a server: the sender in the launcher's process replays the file to MLflow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist

from trainer.engine import StepResult
from trainer.failures import NotFinite
from trainer.phases import read_ms

WARM_UP_STEPS = 5
TIMES = ("step_time_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms")


class _Waiting(NamedTuple):
    time: float
    step: int
    lr: float
    result: StepResult
    taken: tuple[Any, ...]
    profiled: bool


class _TrainLine(msgspec.Struct):
    """A line of kind train; a struct, because it is built and encoded faster than a dict."""

    t: float
    attempt: int
    step: int
    kind: str
    loss: float
    grad_norm: float
    lr: float
    samples: int
    skipped: int
    step_time_ms: float
    data_ms: float
    forward_ms: float
    backward_ms: float
    optimizer_ms: float
    profiled: bool


class Recorder:
    """Collects the steps of every rank; rank 0 writes them. `flush` is collective: all ranks call it at equal steps.

    Args:
        path: metrics.jsonl, or None on the ranks that do not write.
        on_flush: called with the newest line after each flush on the writing rank, for the console.
    """

    def __init__(
        self,
        path: Path | None,
        attempt: int,
        log_every: int,
        on_flush: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._file = open(path, "ab") if path else None  # noqa: SIM115 - closed in close()
        self._attempt = attempt
        self._log_every = log_every
        self._on_flush = on_flush
        self._encode = msgspec.json.Encoder().encode
        self._waiting: list[_Waiting] = []
        self._after_profile = False
        self.measured: list[tuple[float, ...]] = []
        """(step, data, forward, backward, optimizer) in ms of the steps that count, in the order of TIMES."""
        self.samples = 0
        """Samples of the measured steps."""
        self.skipped_steps = 0
        self._newest: _TrainLine | None = None

    @property
    def last(self) -> dict[str, Any]:
        """The newest train line, on the writing rank."""
        assert self._newest is not None, "nothing was written yet"
        return msgspec.structs.asdict(self._newest)

    def record_step(
        self, step: int, lr: float, result: StepResult, taken: tuple[Any, ...], profiled: bool
    ) -> None:
        """Keeps one step; every `log_every` steps writes all that are waiting."""
        self._waiting.append(_Waiting(time.time(), step, lr, result, taken, profiled))
        if step % self._log_every == 0:
            self.flush()

    def flush(self) -> None:
        """Adds up the ranks' losses and writes the waiting steps.

        Raises:
            NotFinite: on every rank, after the lines are written.
        """
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        losses = torch.stack([entry.result.loss for entry in waiting])
        if dist.get_world_size() > 1:
            dist.all_reduce(losses)
        norms = _numbers([entry.result.grad_norm for entry in waiting])
        first_bad = None
        for entry, loss, norm in zip(waiting, losses.tolist(), norms, strict=True):
            times = read_ms(entry.taken)
            self._count(entry, times)
            if not math.isfinite(loss):
                first_bad = first_bad or entry.step
            if self._file is not None:
                self._write_step(entry, loss, norm, times)
        if self._file is not None:
            self._file.flush()
            if self._on_flush:
                self._on_flush(self.last)
        if first_bad is not None:
            raise NotFinite(
                f"the loss of step {first_bad} is not finite; lower TRAINER_LR or set TRAINER_CLIP_NORM"
            )

    def _count(self, entry: _Waiting, times: tuple[float, ...]) -> None:
        self.skipped_steps += entry.result.skipped
        # the traces are written after the last profiled step, which disturbs the next one
        disturbed = entry.profiled or self._after_profile
        self._after_profile = entry.profiled
        if entry.step > WARM_UP_STEPS and not disturbed:
            self.measured.append(times)
            self.samples += entry.result.samples

    def _write_step(self, entry: _Waiting, loss: float, norm: float, times: tuple[float, ...]) -> None:
        assert self._file is not None
        result = entry.result
        step_time_ms, data_ms, forward_ms, backward_ms, optimizer_ms = times
        line = _TrainLine(
            entry.time,
            self._attempt,
            entry.step,
            "train",
            loss,
            norm,
            entry.lr,
            result.samples,
            result.skipped,
            step_time_ms,
            data_ms,
            forward_ms,
            backward_ms,
            optimizer_ms,
            entry.profiled,
        )
        self._newest = line
        if math.isfinite(loss) and math.isfinite(norm):
            self._file.write(self._encode(line) + b"\n")
        else:
            self._write(msgspec.structs.asdict(line))

    def _write(self, line: dict[str, Any]) -> None:
        assert self._file is not None
        bad = [k for k, v in line.items() if isinstance(v, float) and not math.isfinite(v)]
        if bad:  # JSON has no NaN, and MLflow would refuse the whole batch for ever
            line = {k: v for k, v in line.items() if k not in bad}
        self._file.write(self._encode(line) + b"\n")
        if bad:
            self.record("event", line["step"], name="not finite", text=", ".join(bad))

    def record(self, kind: str, step: int, **values: Any) -> None:
        """One line of another kind (eval, system, event), on the writing rank; values of None are left out."""
        if self._file is None:
            return
        given = {name: value for name, value in values.items() if value is not None}
        self._write({"t": time.time(), "attempt": self._attempt, "step": step, "kind": kind, **given})
        self._file.flush()

    def close(self) -> None:
        """Closes the file; what is waiting must be flushed before."""
        if self._file is not None:
            self._file.close()


def _numbers(values: list[Any]) -> list[float]:
    """Tensors or numbers as numbers; tensors in one go, which on a device is one wait instead of many."""
    if torch.is_tensor(values[0]):
        return torch.stack(values).tolist()
    return [float(value) for value in values]
