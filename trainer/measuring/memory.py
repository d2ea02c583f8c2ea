"""The most memory that training holds, when that was, and what for.

Counted by torch's allocator on a device, by this process's resident set on a CPU.

    steps 1 to 5       warm-up: nothing counts
    step 6             counters are set back; taken apart: they are read where a phase begins or ends
    step 7 ...         nothing is asked, the counters go on
    metrics' write     counters are read: the peak of the steps since the last write. Where no step that was taken
                       apart has held as much, the next one is taken apart
    next step          counters are set back

Evaluation, checkpoints, export and the write itself come between a write and the next step: nothing of them counts.
What they leave in the allocator's reserve is in `reserved`, because it is not there for others.
"""

from __future__ import annotations

import os
import re
import resource
from typing import Any, NamedTuple, Protocol

import torch

from stratlab_spec.timed_steps import WARM_UP_STEPS
from trainer.distributed.world import World
from trainer.measuring.held_tensors import GIB, Census, Observed

_HIGHEST = re.compile(rb"VmHWM:\s+(\d+) kB")
_PAGE = os.sysconf("SC_PAGE_SIZE")
INHERITED = 1.02
"""Of the process's own peak: a larger one that getrusage tells is another program's. Both are exact to some pages."""
_RESET_HIGHEST = b"5"  # Documentation/filesystems/proc.rst, clear_refs


class MemoryReading(NamedTuple):
    """What the counters say, in bytes; peaks since they were set back."""

    held: int
    peak: int
    reserved: int | None
    """Taken from the device, what is free in it included; None on a CPU."""
    peak_reserved: int | None
    retries: int | None
    """How often the allocator had to give everything free back before it found room, since the start."""


class Counters:
    """Of this process, whose peaks can be set back. No call waits for a device."""

    source: str
    """What is counted, for people."""
    on_device = False

    def read(self) -> MemoryReading:
        """As it is now."""
        raise NotImplementedError

    def reset(self) -> None:
        """Peaks begin anew, at what is held."""

    def count_retries(self) -> int:
        """As in a reading, 0 on a CPU; cheaper than one."""
        return 0

    def count_outside(self) -> int | None:
        """Bytes of the device that are taken and not the allocator's; None on a CPU."""
        return None


class DeviceCounters(Counters):
    """Of torch's allocator, which counts on the host."""

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
        """CUDA's context, the kernels' code, NCCL's buffers; and what other processes hold, if there are any."""
        free, total = torch.cuda.mem_get_info(self._device)
        taken: int = total - free - torch.cuda.memory_reserved(self._device)
        return taken


class HostCounters(Counters):
    """Of the process's resident set: its libraries and pages that others share are in it.

    The peak is getrusage's, a tenth of the cost of /proc/self/status, which makes sixty lines of text for one number.
    Linux lets getrusage never fall below the peak of the program that started this one by exec (mm.h,
    setmax_mm_hiwater_rss), so below that status is asked.
    """

    def __init__(self) -> None:
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        self._sizes = os.open("/proc/self/statm", os.O_RDONLY)
        try:
            self._clear: int | None = os.open("/proc/self/clear_refs", os.O_WRONLY)
        except OSError:  # a container may not let it
            self._clear = None
        self.source = "resident set of the process"
        if self._clear is None:
            self.source += ", its peak since the start: this system sets none back"
        self.highest = 0
        """Bytes; the largest peak that was set back."""
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
            self.highest = max(self.highest, _highest_resident())  # getrusage forgets it too
            os.pwrite(self._clear, _RESET_HIGHEST, 0)

    def _own_highest(self) -> int:
        found = _HIGHEST.search(os.pread(self._status, 4096, 0))
        assert found, "/proc/self/status without VmHWM"
        return int(found[1]) * 1024


def open_counters(world: World) -> Counters:
    """Of this rank's device."""
    return DeviceCounters(world.device) if world.device_type == "cuda" else HostCounters()


def peak_host_memory_gib(counters: Counters | None = None) -> float:
    """Largest resident set of this process so far, from its start; `counters` may have set it back."""
    return max(_highest_resident(), getattr(counters, "highest", 0)) / GIB


def peak_device_memory_gib(world: World) -> float | None:
    """Largest memory that torch had allocated on the device since its counter was set back; None on CPU."""
    return torch.cuda.max_memory_allocated(world.device) / GIB if world.device_type == "cuda" else None


def _highest_resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


ALIKE = 0.99
"""A step that has held this share of the peak tells what the peak was made of."""
BETWEEN = "between"
"""What a step holds outside of its phases."""
AFTER_FORWARD = ("backward", "optimizer")


class Watched(Protocol):
    """The phases of a step; tells `enter` and `leave` of who watches."""

    def watch(self, by: TrainingMemory | None) -> None:
        """From now on; None = nobody."""


class TrainingMemory:
    """Asked for in windows of steps, from one write of the metrics to the next.

    Args:
        first_step: of this attempt.
        last_step: counts in any case, however short the run.
        census: asked behind each step that is taken apart; None = nobody looks.
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
        self._kept: dict[str, int] | None = None  # behind the step that held most
        self._phases = phases
        self._first = self._due = min(first_step + WARM_UP_STEPS, last_step)
        self._step = 0
        self._opened = 0  # first step of the window; 0 = there is none
        self._top = 0  # of the window, as far as it was read
        self._reserved = 0
        self._retries = 0
        self._retries_before = 0
        self._peak = 0
        self._peak_steps = (0, 0)
        self._stack: list[str] = []
        self._parts: dict[str, int] | None = None  # of the step that is taken apart just now
        self._known: dict[str, int] = {}  # of the one that held most
        self._known_step = 0

    def begin_step(self, step: int) -> None:
        """Before a step; two stores and a comparison, but for the first step of a window and the one after it."""
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
        """In a step that is taken apart: `phase` begins, maybe inside another."""
        self._note()
        self._stack.append(phase)
        if phase == "optimizer" and self._census is not None:
            self._census.note_gradients()

    def leave(self) -> None:
        """The newest phase ends."""
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
                self.counters.reset()  # what it has taken itself is no peak of training's

    def end_window(self) -> MemoryReading:
        """At a write of the metrics, before it takes anything; the peak is that of the steps since the last one."""
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
        """What the run directory keeps (docs/memory.md); None where no step has counted.

        Args:
            data_set: bytes of it that lie on the device.
            micro_batches: of a step.
        """
        if not self._peak:
            return None
        phase = max(self._known, key=self._known.__getitem__, default=None)
        if phase is not None and self._known[phase] < ALIKE * self._peak:
            phase = None
        held = {"data_set": data_set}
        # gradients are not there yet in the forward pass of a step's only micro-batch
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
