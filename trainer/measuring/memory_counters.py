"""Memory counters of this process: those of torch's allocator on a device, of its resident set on a CPU."""

from __future__ import annotations

import os
import re
import resource
from typing import NamedTuple, Protocol

import torch

from trainer.layout.world import World

GIB = 2**30
_HIGHEST = re.compile(rb"VmHWM:\s+(\d+) kB")
_PAGE = os.sysconf("SC_PAGE_SIZE")
INHERITED = 1.02
"""Of the process's own peak: a larger one that getrusage tells is another program's. Both are exact to some pages."""
_RESET_HIGHEST = b"5"  # Documentation/filesystems/proc.rst, clear_refs


class Reading(NamedTuple):
    """What the counters say, in bytes; peaks since they were set back."""

    held: int
    peak: int
    reserved: int | None
    """Taken from the device, what is free in it included; None on a CPU."""
    peak_reserved: int | None
    retries: int | None
    """How often the allocator had to give everything free back before it found room, since the start."""


class Counters(Protocol):
    """Whose peaks can be set back. No call waits for a device."""

    source: str
    """What is counted, for people."""
    on_device: bool

    def read(self) -> Reading:
        """As it is now."""

    def reset(self) -> None:
        """Peaks begin anew, at what is held."""

    def count_retries(self) -> int:
        """As in a reading, 0 on a CPU; cheaper than one."""

    def count_outside(self) -> int | None:
        """Bytes of the device that are taken and not the allocator's; None on a CPU."""


class DeviceCounters:
    """Of torch's allocator, which counts on the host."""

    source = "torch's CUDA allocator"
    on_device = True

    def __init__(self, device: str) -> None:
        self._device = device

    def read(self) -> Reading:
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        sizes = allocated["current"], allocated["peak"], reserved["current"], reserved["peak"]
        return Reading(*sizes, stats["num_alloc_retries"])

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


class HostCounters:
    """Of the process's resident set: its libraries and pages that others share are in it.

    The peak is getrusage's, a tenth of the cost of /proc/self/status, which makes sixty lines of text for one number.
    Linux lets getrusage never fall below the peak of the program that started this one by exec (mm.h,
    setmax_mm_hiwater_rss), so below that status is asked.
    """

    on_device = False

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

    def read(self) -> Reading:
        held = int(os.pread(self._sizes, 100, 0).split(None, 2)[1]) * _PAGE
        peak = _highest_resident()
        if peak <= self._inherited:
            peak = self._own_highest()
        return Reading(held, max(held, peak), None, None, None)

    def reset(self) -> None:
        if self._clear is not None:
            highest = _highest_resident()  # getrusage forgets it too
            if highest > self.highest:
                self.highest = highest
            os.pwrite(self._clear, _RESET_HIGHEST, 0)

    def count_retries(self) -> int:
        return 0

    def count_outside(self) -> int | None:
        return None

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
