"""Writes metrics.jsonl. A step costs the loop a few list appends; lines are built every `log_every` steps.

Nothing here talks to a server: the sender in the launcher's process replays the file to MLflow.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist

from stratlab_spec.schedule import WARM_UP_STEPS
from trainer.engine import StepResult
from trainer.measuring.hardware import NAMES as SYSTEM
from trainer.measuring.phases import read_ms
from trainer.metrics.progress import EpochCount, OwnTimes, Straggler, Stragglers
from trainer.metrics.spool import Spool
from trainer.metrics.training_failures import Guard, Step, name_rank

if TYPE_CHECKING:
    from trainer.measuring.operators import ProductTypes, WireCounter


COUNTED_STEP = 3  # of an attempt: after the set-up in the first steps, before the measured ones
_UNCOUNTED = nullcontext()
_NO_TOKENS = (msgspec.UNSET,) * 3
log = logging.getLogger("trainer")
MOST_WAITING = 10
"""Steps: so a slow rank is found within 20 of them (progress.py), and a loss that is not finite, with any log_every."""


class _Waiting(msgspec.Struct):
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
    tokens: int | msgspec.UnsetType = msgspec.UNSET
    useful_tokens: int | msgspec.UnsetType = msgspec.UNSET
    token_pairs: int | msgspec.UnsetType = msgspec.UNSET


def _line_with(step_measures: Sequence[str]) -> Any:
    """Return the line's struct with the task's measures per step."""
    kind, left_out = float | msgspec.UnsetType, msgspec.UNSET
    more: list[Any] = [(f"train_{name}_pct", kind, left_out) for name in step_measures]
    return msgspec.defstruct("_TrainLine", more, bases=(_TrainLine,)) if more else _TrainLine


class Recorder:
    """Collect the steps of every rank; rank 0 writes them. `flush` is collective: all ranks call it at equal steps.

    Args:
        path: metrics.jsonl, or None on the ranks that do not write.
        on_flush: called with the newest line after each flush on the writing rank, for the console.
        read_system: this rank's memory, utilisation... in the order of `measuring.hardware.NAMES`; None = not
            recorded.
        world_axis: name of the group of all processes in the traffic counts.
        epoch_samples: of the training split, for a line at the end of each epoch; 0 = no such lines.
        step_measures: of the learner that is trained.
        guard: handles values that are not finite; None = the run stops.
        nodes: the machine of each rank, "" if unknown; empty = none is known.
        waited_share: returns this rank's share of waiting in collectives during the forward passes since the last
            call; NaN, or no such function = not known.
    """

    def __init__(
        self,
        path: Path | None,
        attempt: int,
        log_every: int,
        on_flush: Callable[[dict[str, Any]], None] | None = None,
        read_system: Callable[[], list[float]] | None = None,
        world_axis: str = "world",
        epoch_samples: int = 0,
        guard: Guard | None = None,
        nodes: Sequence[str] = (),
        waited_share: Callable[[], float] | None = None,
        step_measures: Sequence[str] = (),
    ) -> None:
        self._line = _line_with(step_measures)
        self._accuracy = step_measures.index("accuracy") if "accuracy" in step_measures else None
        self._guard = guard or Guard("stop", scales_loss=False, node="")
        self._nodes = nodes
        self._waited_share = waited_share
        self._own = OwnTimes()
        self._unsettled = 0  # steps whose waiting is not known yet
        self._stragglers = Stragglers()
        self._epochs = EpochCount(epoch_samples) if epoch_samples else None
        self._world_axis = world_axis
        self._spool = Spool(path) if path else None
        self._reported_dropped = 0
        self._attempt = attempt
        self._log_every = log_every
        self._on_flush = on_flush
        self._read_system = read_system
        self._encode = msgspec.json.Encoder().encode
        self._waiting: list[_Waiting] = []
        self._after_profile = False
        self._steps = 0  # of this attempt, written
        self._begun = 0  # of this attempt, until one was counted
        self.skipped_steps = 0
        self.wire: WireCounter | None = None
        """The collectives of the step that was counted; None if the attempt was too short."""
        self.products: ProductTypes | None = None
        """The products of the same step."""
        self._newest: _TrainLine | None = None

    @property
    def has_written(self) -> bool:
        """Whether there was a step in this attempt, on the writing rank."""
        return self._newest is not None

    @property
    def last(self) -> dict[str, Any]:
        """The newest train line, on the writing rank."""
        assert self._newest is not None, "nothing was written yet"
        return _fields(self._newest)

    def record_step(
        self, step: int, lr: float, result: StepResult, taken: tuple[Any, ...], profiled: bool
    ) -> None:
        """Keep one step; every `log_every` steps, and every 10, write all waiting ones."""
        self._waiting.append(_Waiting(time.time(), step, lr, result, taken, profiled))
        if step % self._log_every == 0 or len(self._waiting) >= MOST_WAITING:
            self.flush()

    def count_wire(self, profiling: bool) -> AbstractContextManager[Any]:
        """Count collectives and products during the computation of one step.

        It is the third step of an attempt or, if that is profiled, the next one without a profile. DDP sorts its
        buckets anew after the first step.

        Args:
            profiling: this step is in the profile.
        """
        if self.wire is not None:
            return _UNCOUNTED
        self._begun += 1
        if self._begun < COUNTED_STEP or profiling:
            return _UNCOUNTED
        from trainer.measuring import operators  # its imports take long and are needed once

        self.wire, self.products = operators.WireCounter(self._world_axis), operators.ProductTypes()
        both = ExitStack()
        both.enter_context(self.wire)
        both.enter_context(self.products)
        return both

    def flush(self) -> None:
        """Sum the ranks' losses and write the waiting steps, and one line of kind system."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        on_device = not isinstance(waiting[0].taken[0], int)
        times = (
            [] if on_device else self._read_times(waiting)
        )  # otherwise the host would wait for the device once more
        chunks = self._own.take()
        own_ms = [ms for chunk in chunks for ms in (chunk.data_ms, chunk.own_ms)]
        losses, measures, system = self._gather([entry.result for entry in waiting], own_ms)
        times = times or self._read_times(waiting)
        norms = _numbers([entry.result.grad_norm for entry in waiting])
        left_out = sum(entry.result.skipped for entry in waiting)
        bad: list[Step] = []  # all steps, or none: nearly every write has only finite and complete steps
        if left_out or not math.isfinite(sum(losses) + sum(norms)):
            bad = [
                Step(entry.step, loss, norm, bool(entry.result.skipped))
                for entry, loss, norm in zip(waiting, losses, norms, strict=True)
            ]
        skipped = [self._guard.counts_as_skipped(step) for step in bad] if bad else [False] * len(waiting)
        self.skipped_steps += sum(skipped)
        if self._spool is not None:
            last = waiting[-1].step
            for each in zip(waiting, losses, measures, norms, times, skipped, strict=True):
                self._write_step(*each)
            system, own = system[: len(system) - len(own_ms)], system[len(system) - len(own_ms) :]
            for i, chunk in enumerate(chunks):
                for slow in self._stragglers.add(chunk.step, own[2 * i], own[2 * i + 1], chunk.step_ms):
                    self._report(last, slow)
            if system:
                self._write_system(last, system)
            lost = self._spool.dropped - self._reported_dropped
            if self._spool.flush() and lost:  # the volume was full for too long: reported as soon as possible
                self._reported_dropped += lost
                self.record("event", last, name="metrics dropped", text=f"{lost} lines, the volume was full")
            if self._on_flush:
                self._on_flush(self.last)
        if not bad:
            self._guard.forget()
            return
        for number, sentence in self._guard.check(bad, [entry.result.loss for entry in waiting]):
            if self._spool is not None:
                log.warning("step %d: %s", waiting[-1].step, sentence)
            found = self._guard.found
            self.record("event", number, name="not finite", text=sentence, not_finite_steps=found)

    def _read_times(self, waiting: Sequence[_Waiting]) -> list[tuple[float, ...]]:
        """Return the times of each step, in ms; with several ranks, keep those that count for comparing the ranks."""
        found = [read_ms(entry.taken) for entry in waiting]
        if dist.get_world_size() == 1:
            return found
        for entry, times in zip(waiting, found, strict=True):
            if self._counts(entry):
                self._own.add(entry.step, times[1], times[2], times[0])
        self._unsettled += len(waiting)
        if self._unsettled + self._log_every > MOST_WAITING:  # a few steps are too few to see how they waited
            self._own.settle(self._waited_share() if self._waited_share else math.nan)
            self._unsettled = 0
        return found

    def _report(self, step: int, slow: Straggler) -> None:
        node = self._nodes[slow.rank] if slow.rank < len(self._nodes) else ""
        text = (
            f"{name_rank(slow.rank, node)} takes {slow.ratio:.1f} times as long as the others since step "
            f"{slow.since_step}: they wait {slow.share_pct:.0f} % of each step"
        )
        log.warning("step %d: %s", step, text)
        facts = {"rank": slow.rank, "node": node, "share_pct": slow.share_pct}
        self.record("event", step, name="straggler", **facts, text=text)

    def describe_straggler(self) -> dict[str, Any]:
        """Return the slowest rank that was found, for summary.json; on the writing rank."""
        worst = self._stragglers.worst
        return {
            "straggler": f"rank {worst.rank}" if worst else "none",
            "straggler_share_pct": worst.share_pct if worst else None,
        }

    def _gather(
        self, results: list[StepResult], own_ms: list[float]
    ) -> tuple[list[float], Sequence[Sequence[float]], list[list[float]]]:
        """Return (losses over all ranks, the measures of each step, each system number and own time of every rank).

        One collective carries them all. The last part travels as a table [number, rank] whose other columns are zero.
        """
        # first of all: the write itself takes memory
        own = [*self._read_system(), *own_ms] if self._read_system else own_ms
        losses = torch.stack([result.loss for result in results])
        ranks, steps = dist.get_world_size(), len(results)
        counts = [result.measures for result in results if result.measures is not None]
        parts = [losses]
        if counts:  # as many as losses: a task counts in every step or in none
            # the losses' type first: joining two types takes ten times as long (torch 2.13)
            parts.append(torch.stack(counts).to(losses.dtype).flatten())
        if own and ranks > 1:
            table = torch.zeros(len(own), ranks, dtype=losses.dtype)
            table[:, dist.get_rank()] = torch.tensor(own, dtype=losses.dtype)
            parts.append(table.flatten().to(losses.device, non_blocking=True))
        packed = torch.cat(parts) if len(parts) > 1 else losses
        if ranks > 1:
            dist.all_reduce(packed)
        numbers = packed.tolist()
        if ranks == 1:  # no rank to add up with; as tensors they would cost microseconds of every step
            numbers += own
        each = len(counts[0]) if counts else 0
        measures = [numbers[steps + i * each : steps + (i + 1) * each] for i in range(steps)]
        of_ranks = [numbers[i : i + ranks] for i in range(steps * (1 + each), len(numbers), ranks)]
        return numbers[:steps], measures, of_ranks

    def _write_system(self, step: int, numbers: list[list[float]]) -> None:
        values = {
            f"rank{rank}_{name}": value
            for rank, row in enumerate(zip(*numbers, strict=True))
            for name, value in zip(SYSTEM, row, strict=True)
            if math.isfinite(value)  # NaN: unavailable on this machine
        }
        self.record("system", step, **values)

    def _counts(self, entry: _Waiting) -> bool:
        """Return whether this step counts for comparing the ranks; called once for each, in their order."""
        # the traces are written after the last profiled step, which disturbs the next one
        disturbed = entry.profiled or self._after_profile
        self._after_profile = entry.profiled
        self._steps += 1
        return self._steps > WARM_UP_STEPS and not disturbed

    def _write_step(
        self,
        entry: _Waiting,
        loss: float,
        right: Sequence[float],
        norm: float,
        times: tuple[float, ...],
        skipped: bool,
    ) -> None:
        assert self._spool is not None
        result = entry.result
        line = self._line(
            entry.time,
            self._attempt,
            entry.step,
            "train",
            loss,
            norm,
            entry.lr,
            result.samples,
            int(skipped),
            *times,
            entry.profiled,
            *((result.tokens, result.useful_tokens, result.token_pairs) if result.tokens else _NO_TOKENS),
            *[100.0 * count / result.samples for count in right],
        )
        self._newest = line
        if math.isfinite(loss) and math.isfinite(norm):
            self._spool.append(self._encode(line) + b"\n")
        else:
            self._write(_fields(line))
        if self._epochs:
            correct = right[self._accuracy] if self._accuracy is not None and right else None
            ended = self._epochs.add(entry.step, entry.time, times[0], result.samples, loss, correct)
            if ended:
                self._write(self._head("epoch", entry.step, entry.time) | ended)

    def _head(self, kind: str, step: int, at: float) -> dict[str, Any]:
        return {"t": at, "attempt": self._attempt, "step": step, "kind": kind}

    def _write(self, line: dict[str, Any]) -> None:
        assert self._spool is not None
        bad = [k for k, v in line.items() if isinstance(v, float) and not math.isfinite(v)]
        if bad:  # JSON has no NaN, and MLflow would reject the whole batch again and again
            line = {k: v for k, v in line.items() if k not in bad}
        self._spool.append(self._encode(line) + b"\n")
        if bad:
            self.record("event", line["step"], name="not finite", text=", ".join(bad))

    def record(self, kind: str, step: int, **values: Any) -> None:
        """Write one line of another kind (eval, system, event), on the writing rank; values of None are left out."""
        if self._spool is None:
            return
        given = {name: value for name, value in values.items() if value is not None}
        self._write(self._head(kind, step, time.time()) | given)
        self._spool.flush()

    def close(self) -> None:
        """Close the file; waiting lines must be flushed before."""
        if self._spool is not None:
            self._spool.close()


def _fields(line: _TrainLine) -> dict[str, Any]:
    return {k: v for k, v in msgspec.structs.asdict(line).items() if v is not msgspec.UNSET}


def _numbers(values: list[Any]) -> list[float]:
    """Return tensors or numbers as numbers; tensors in one go, which on a device is one wait instead of many."""
    try:
        return torch.stack(values).tolist()
    except TypeError:  # DeepSpeed's norm of a step that it has left out is a number
        return [float(value) for value in values]
