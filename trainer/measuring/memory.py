"""Measure the peak memory of training, when it occurs, and its composition.

Counters are torch's allocator on a device and this process's resident set on a CPU. Per window of steps:

* Steps 1 to 5 are warm-up and do not count.
* Step 6 resets the counters. It is analysed: the counters are read at the start and end of each phase.
* From step 7 on the counters run without being read.
* A write of the metrics reads the peak of the steps since the previous write. If no analysed step has held as much, the
  next step is analysed.
* The next step resets the counters.

Evaluation, checkpoints, export and the write itself happen between a write and the next step and do not count. The
memory that they leave in the allocator's reserve counts in `reserved`, because other processes cannot use it.
"""

from __future__ import annotations

import os
import re
import resource
from typing import Any, NamedTuple, Protocol

import torch

from stratlab_spec.schedule import WARM_UP_STEPS
from trainer.distributed.world import World
from trainer.measuring.held_tensors import GIB, Census, Observed

_HIGHEST = re.compile(rb"VmHWM:\s+(\d+) kB")
_PAGE = os.sysconf("SC_PAGE_SIZE")
INHERITED = 1.02
"""Factor of the process's own peak: a larger getrusage peak is another program's. Both are exact to some pages."""
_RESET_HIGHEST = b"5"  # Documentation/filesystems/proc.rst, clear_refs


class MemoryReading(NamedTuple):
    """The values of the counters in bytes; peaks since the last reset."""

    held: int
    peak: int
    reserved: int | None
    """Memory reserved from the device, including free parts; None on a CPU."""
    peak_reserved: int | None
    retries: int | None
    """How often the allocator had to release all free memory before it found room, since the start."""


class Counters:
    """Memory counters of this process with resettable peaks; no call waits for a device."""

    source: str
    """Name of the counter for users."""
    on_device = False

    def read(self) -> MemoryReading:
        """Return the current values."""
        raise NotImplementedError

    def reset(self) -> None:
        """Reset the peaks to the current values."""

    def count_retries(self) -> int:
        """Return the retries of a reading, 0 on a CPU; cheaper than a reading."""
        return 0

    def count_outside(self) -> int | None:
        """Return the used bytes of the device that are not the allocator's; None on a CPU."""
        return None


class DeviceCounters(Counters):
    """Counters of torch's allocator, which counts on the host."""

    source = "torch's CUDA allocator"
    on_device = True

    def __init__(self, device: str) -> None:
        self._device = device

    def read(self) -> MemoryReading:
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        sizes = allocated["current"], allocated["peak"], reserved["current"], reserved["peak"]
        return MemoryReading(*sizes, stats["num_alloc_retries"])

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def count_retries(self) -> int:
        retries: int = torch.cuda.memory_stats_as_nested_dict(self._device)["num_alloc_retries"]
        return retries

    def count_outside(self) -> int | None:
        """Return the bytes of CUDA's context, kernel code, NCCL's buffers, and of other processes, if any."""
        free, total = torch.cuda.mem_get_info(self._device)
        taken: int = total - free - torch.cuda.memory_reserved(self._device)
        return taken


class HostCounters(Counters):
    """Counters of the process's resident set, which includes its libraries and shared pages.

    The peak is from getrusage, a tenth of the cost of /proc/self/status, which formats sixty lines for one number.
    On Linux, getrusage never falls below the peak of the program that started this program by exec (mm.h,
    setmax_mm_hiwater_rss). Below that peak, status is read.
    """

    def __init__(self) -> None:
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        self._sizes = os.open("/proc/self/statm", os.O_RDONLY)
        try:
            self._clear: int | None = os.open("/proc/self/clear_refs", os.O_WRONLY)
        except OSError:  # a container may forbid it
            self._clear = None
        self.source = "resident set of the process"
        if self._clear is None:
            self.source += ", its peak since the start: this system sets none back"
        self.highest = 0
        """Bytes; the largest peak before a reset."""
        own, told = self._own_highest(), _highest_resident()
        self._inherited = told if told > INHERITED * own else 0

    def read(self) -> MemoryReading:
        held = int(os.pread(self._sizes, 100, 0).split(None, 2)[1]) * _PAGE
        peak = _highest_resident()
        if peak <= self._inherited:
            peak = self._own_highest()
        return MemoryReading(held, max(held, peak), None, None, None)

    def reset(self) -> None:
        if self._clear is not None:
            self.highest = max(self.highest, _highest_resident())  # the reset clears getrusage's peak too
            os.pwrite(self._clear, _RESET_HIGHEST, 0)

    def _own_highest(self) -> int:
        found = _HIGHEST.search(os.pread(self._status, 4096, 0))
        assert found, "/proc/self/status without VmHWM"
        return int(found[1]) * 1024


def open_counters(world: World) -> Counters:
    """Return the counters of this rank's device."""
    return DeviceCounters(world.device) if world.device_type == "cuda" else HostCounters()


def peak_host_memory_gib(counters: Counters | None = None) -> float:
    """Return the largest resident set of this process since its start; `counters` may have reset it."""
    return max(_highest_resident(), getattr(counters, "highest", 0)) / GIB


def peak_device_memory_gib(world: World) -> float | None:
    """Return the largest memory that torch allocated on the device since the last reset; None on a CPU."""
    return torch.cuda.max_memory_allocated(world.device) / GIB if world.device_type == "cuda" else None


def _highest_resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


ALIKE = 0.99
"""Share of the peak from which a step represents the composition of the peak."""
BETWEEN = "between"
"""Name of the memory that a step holds outside of its phases."""
AFTER_FORWARD = ("backward", "optimizer")


class Watched(Protocol):
    """The phases of a step; they call `enter` and `leave` of the watcher."""

    def watch(self, by: TrainingMemory | None) -> None:
        """Set the watcher; None = no watcher."""


class TrainingMemory:
    """The peak memory of training, measured in windows from one write of the metrics to the next.

    Args:
        first_step: of this attempt.
        last_step: always counts, even in a short run.
        census: called after each analysed step; None = no census.
    """

    def __init__(
        self,
        counters: Counters,
        phases: Watched,
        first_step: int,
        last_step: int,
        census: Census | None = None,
    ) -> None:
        self.counters = counters
        self._census = census
        self._kept: dict[str, int] | None = None  # after the step with the highest peak
        self._phases = phases
        self._first = self._due = min(first_step + WARM_UP_STEPS, last_step)
        self._step = 0
        self._opened = 0  # first step of the window; 0 = no window
        self._top = 0  # peak of the window in the readings so far
        self._reserved = 0
        self._retries = 0
        self._retries_before = 0
        self._peak = 0
        self._peak_steps = (0, 0)
        self._stack: list[str] = []
        self._parts: dict[str, int] | None = None  # of the step being analysed
        self._known: dict[str, int] = {}  # of the analysed step with the highest peak
        self._known_step = 0

    def begin_step(self, step: int) -> None:
        """Open windows before a step; mostly two stores and a comparison, more only in a window's first two steps."""
        self._step = step
        if step == self._due:
            self._begin(step)

    def _begin(self, step: int) -> None:
        if self._parts is not None:
            self._put_together(step - 1)
        if self._opened:
            return
        self.counters.reset()
        self._opened, self._top = step, 0
        self._retries_before = self.counters.count_retries()
        if not self._known or max(self._known.values()) < ALIKE * self._peak:
            self._parts = {}
            self._phases.watch(self)
            self._due = step + 1

    def enter(self, phase: str) -> None:
        """Note the start of `phase` in an analysed step; phases may be nested."""
        self._note()
        self._stack.append(phase)
        if phase == "optimizer" and self._census is not None:
            self._census.note_gradients()

    def leave(self) -> None:
        """Note the end of the innermost phase."""
        self._note()
        self._stack.pop()

    def _note(self) -> None:
        assert self._parts is not None, "nobody watches"
        phase, reading = self._stack[-1] if self._stack else BETWEEN, self.counters.read()
        self._parts[phase] = max(self._parts.get(phase, 0), reading.peak)
        self._top = max(self._top, reading.peak)
        self._reserved = max(self._reserved, reading.peak_reserved or 0)
        self.counters.reset()

    def _put_together(self, step: int) -> None:
        assert self._parts is not None
        self._note()
        self._phases.watch(None)
        parts, self._parts = self._parts, None
        if max(parts.values()) > max(self._known.values(), default=0):
            self._known, self._known_step = parts, step
            if self._census is not None:
                self._kept = self._census.take()
                self.counters.reset()  # memory of the census itself is not part of training's peak

    def end_window(self) -> MemoryReading:
        """Return the peak of the steps since the previous call; call it first in a write of the metrics."""
        reading = self.counters.read()
        if self._top > reading.peak:
            reading = reading._replace(peak=self._top)
        if not self._opened:
            return reading
        if self._parts is not None:
            self._put_together(self._step)
        self._reserved = max(self._reserved, reading.peak_reserved or 0)
        self._retries += (reading.retries or 0) - self._retries_before
        if reading.peak > self._peak:
            self._peak, self._peak_steps = reading.peak, (self._opened, self._step)
        self._opened, self._due = 0, self._step + 1
        return reading

    def describe(self, observed: Observed, data_set: int, micro_batches: int) -> dict[str, Any] | None:
        """Return the facts for the run directory (docs/memory.md); None without counted steps.

        Args:
            data_set: bytes of the data set on the device.
            micro_batches: number per step.
        """
        if not self._peak:
            return None
        phase = max(self._known, key=self._known.__getitem__, default=None)
        if phase is not None and self._known[phase] < ALIKE * self._peak:
            phase = None
        held = {"data_set": data_set}
        # in the forward pass of a step's only micro-batch, gradients do not exist yet
        left_out = () if phase in AFTER_FORWARD or micro_batches > 1 else ("gradients", "buckets")
        elsewhere = observed.on_host if self.counters.on_device else {}
        state = {kind: size - elsewhere.get(kind, 0) for kind, size in observed.bytes_held.items()}
        held |= {kind: size for kind, size in state.items() if kind not in left_out}
        held["rest"] = self._peak - sum(held.values())
        outside, on_device = self.counters.count_outside(), self.counters.on_device

        def as_gib(sizes: dict[str, int]) -> dict[str, float]:
            return {name: size / GIB for name, size in sizes.items()}

        return {
            "source": self.counters.source,
            "from_step": self._first,
            "to_step": self._step,
            "peak_gib": self._peak / GIB,
            "reserved_gib": self._reserved / GIB if on_device else None,
            "outside_gib": None if outside is None else outside / GIB,
            "alloc_retries": self._retries if on_device else None,
            "peak_steps": list(self._peak_steps),
            "peak_phase": phase,
            "phases_step": self._known_step,
            "phases_gib": as_gib(self._known),
            "held_gib": as_gib(held),
            "state_gib": as_gib(state),
            "kept_gib": None if self._kept is None else as_gib(self._kept),
        }
