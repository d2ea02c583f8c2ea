"""Label the phases of a step for the trace, and time them for the metrics, with one context manager.

Outside the profiled steps a phase needs two clock reads; `record_function` would add ten microseconds even without a
profiler. On an accelerator the clock is a pair of events on the stream, read only when the metrics are written, so
timing never makes the host wait.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from types import TracebackType
from typing import Any

import torch
from torch.profiler import record_function

from stratlab_spec.trace_events import LABELS, STEP_LABEL
from trainer.measuring.memory import TrainingMemory


class Phase:
    """Adds the time between enter and exit to its total; entered once per micro-batch."""

    __slots__ = (
        *("_began", "_record", "alone", "label", "on_enter", "on_exit", "recording", "spans", "total_ns"),
    )

    def __init__(self, label: str) -> None:
        self.recording = False
        self.label = label
        self._record: record_function | None = None
        self._began = 0
        self.total_ns = 0
        self.spans: list[tuple[Any, Any]] = []
        self.on_enter: Callable[[], None] | None = None
        self.on_exit: Callable[[], None] | None = None
        self.alone = True
        """Neither watched nor recorded, as in nearly every step: one check instead of four."""

    def settle(self) -> None:
        """Update `alone` after a change of `recording`, `on_enter` or `on_exit`."""
        self.alone = not self.recording and self.on_enter is None and self.on_exit is None

    @property
    def is_open(self) -> bool:
        """Return whether it was entered and not left."""
        return self._began != 0

    def __enter__(self) -> None:
        if not self.alone:
            if self.on_enter is not None:
                self.on_enter()
            if self.recording:
                self._record = record_function(self.label)
                self._record.__enter__()
        self._began = perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.total_ns += perf_counter_ns() - self._began
        if kind is None:  # after an error it stays open, so that `name_open` finds the failed phase
            self._began = 0
        if self.alone:
            return
        if self._record is not None:
            self._record.__exit__(kind, value, trace)
            self._record = None
        if self.on_exit is not None:
            self.on_exit()


class DevicePhase(Phase):
    """A phase timed by events on the accelerator's stream, because host clocks see only the launches."""

    __slots__ = ()

    def __enter__(self) -> None:
        super().__enter__()
        start = torch.Event(enable_timing=True)
        start.record()
        self.spans.append((start, None))

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        stop = torch.Event(enable_timing=True)
        stop.record()
        self.spans[-1] = (self.spans[-1][0], stop)
        super().__exit__(kind, value, trace)


def read_ms(taken: tuple[Any, ...]) -> tuple[float, ...]:
    """Return the milliseconds of a result of `Phases.take`; waits for the device, if any."""
    if isinstance(taken[0], int):
        return tuple([total_ns / 1e6 for total_ns in taken])
    return tuple([sum(_elapsed_ms(*span) for span in spans) for spans in taken])


def _elapsed_ms(start: Any, stop: Any) -> float:
    stop.synchronize()
    return start.elapsed_time(stop)


class Phases:
    """The phases of a run and the whole step; the profiler switches the labels on and off."""

    def __init__(self, device_type: str) -> None:
        kind = Phase if device_type == "cpu" else DevicePhase
        self.data, self.forward, self.backward, self.optimizer = (kind(label) for label in LABELS.values())
        self.step = kind(STEP_LABEL)
        self.on_device = kind is DevicePhase
        self._all = (self.step, self.data, self.forward, self.backward, self.optimizer)

    def begin_step(self, step: int) -> Phase:
        """Return the context of one whole step; its label in the trace holds the number."""
        if self.step.recording:
            self.step.label = STEP_LABEL.format(step=step)
        return self.step

    def name_open(self) -> str:
        """Return the current phase of the main thread, from any thread; "" outside of phases."""
        return next((name for name in LABELS if getattr(self, name).is_open), "")

    def record(self, on: bool) -> None:
        """Switch the labels in the trace on or off; call it between two steps."""
        for phase in self._all:
            phase.recording = on
            phase.settle()

    def watch(self, by: TrainingMemory | None) -> None:
        """Call `by` at the start and end of each phase; None = no watcher. Call it between two steps."""
        for name in LABELS:
            phase = getattr(self, name)
            phase.on_enter = partial(by.enter, name) if by else None
            phase.on_exit = by.leave if by else None
            phase.settle()

    def take(self) -> tuple[Any, ...]:
        """Return (step, data, forward, backward, optimizer) of the finished step, for `read_ms`."""
        if self.on_device:
            spans = tuple([phase.spans for phase in self._all])
            for phase in self._all:
                phase.spans = []
            return spans
        step, data, forward, backward, optimizer = self._all  # without calls, because this runs in every step
        taken = (step.total_ns, data.total_ns, forward.total_ns, backward.total_ns, optimizer.total_ns)
        step.total_ns = data.total_ns = forward.total_ns = backward.total_ns = optimizer.total_ns = 0
        return taken
