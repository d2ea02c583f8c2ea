"""Measure a rank's GPU, its own process and the other load of its machine while a run trains.

`Meter` reads the GPU at every write of the metrics, and the GPU's limits, which must be equal in compared runs. NVML
takes up to some milliseconds per answer, so a `Sampler` thread reads it once per second, and `Meter.read` returns the
mean since the previous call. Memory counters are torch's own, on the host: no call here waits for the device. Other
work on the machine slows steps down, so `MachineLoad` measures it.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from stratlab_spec.run_directory import LAUNCHER_PID, REHEARSAL_PID
from trainer.distributed.world import World
from trainer.measuring.held_tensors import GIB
from trainer.measuring.memory import TrainingMemory

SAMPLE_EVERY_S = 1.0
# Questions to NVML (the module pynvml) about a GPU's handle: once per second, and at the end.
SAMPLED: dict[str, Callable[[Any, Any], float]] = {
    "gpu_utilisation_pct": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "gpu_temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "gpu_power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,  # in milliwatts
    "gpu_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
}
LIMITS: dict[str, Callable[[Any, Any], float]] = {
    "power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3,
    "clock_limit_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "memory_clock_limit_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM),
}
NVML_NAMES = tuple(SAMPLED)
# HwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown (nvml.h); a power cap is not a fault
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
NAMES = ("memory_allocated_gib", "memory_reserved_gib", "memory_peak_gib", *NVML_NAMES, "host_memory_gib")
"""Names of the numbers of `Meter.read`, in order."""

GPU_FACTS = (*LIMITS, "highest_clock_mhz", "slowed_pct")
"""Names of the facts of `Meter.describe`; None if NVML does not report one."""

log = logging.getLogger("trainer")


class Meter:
    """Memory, utilisation, temperature and power of this rank; NaN if unavailable.

    Args:
        memory: `read` ends its window.
    """

    def __init__(self, world: World, memory: TrainingMemory) -> None:
        self._memory = memory
        self._device = world.device if world.device_type == "cuda" else None
        self._host = os.open("/proc/self/statm", os.O_RDONLY)
        self._page_gib = os.sysconf("SC_PAGE_SIZE") / GIB
        self._sampler = open_sampler(world.device) if self._device else None

    def read(self) -> list[float]:
        """Return the numbers named `NAMES`.

        Device memory is from torch's allocator, with the peak of the steps since the previous call. Utilisation is the
        mean since the previous call.
        """
        memory, found = [math.nan] * 3, self._memory.end_window()
        if self._device is None:
            return [*memory, *[math.nan] * len(NVML_NAMES), found.held / GIB]
        if found.reserved is not None:
            memory = [size / GIB for size in (found.held, found.reserved, found.peak)]
        nvml = self._sampler.take() if self._sampler else [math.nan] * len(NVML_NAMES)
        resident = int(os.pread(self._host, 100, 0).split()[1]) * self._page_gib
        return [*memory, *nvml, resident]

    def describe(self) -> dict[str, float | None] | None:
        """Return the GPU's limits and its observed speed; None on a CPU. Fields: docs/formats.md."""
        if not self._device:
            return None
        return self._sampler.describe() if self._sampler else dict.fromkeys(GPU_FACTS)

    def close(self) -> None:
        """Stop the thread."""
        os.close(self._host)
        if self._sampler:
            self._sampler.stop()


class Sampler(threading.Thread):
    """Queries NVML once per second; a number that the GPU lacks (a MIG slice has no utilisation) is NaN.

    Args:
        nvml: the module pynvml, initialised.
        handle: NVML's handle of the GPU.
    """

    def __init__(self, nvml: Any, handle: Any, every_s: float = SAMPLE_EVERY_S) -> None:
        super().__init__(name="nvml-sampler", daemon=True)
        self._nvml = nvml
        self._handle = handle
        self._every_s = every_s
        self._stopped = threading.Event()
        self._samples: list[list[float]] = []
        self._last = [math.nan] * len(NVML_NAMES)
        self._highest_mhz = -math.inf
        self._slowed: list[bool] = []

    def run(self) -> None:
        while not self._stopped.is_set():
            sample = self._ask(SAMPLED.values())  # before append(): `take` may replace the list meanwhile
            self._samples.append(sample)
            self._watch(sample)
            self._stopped.wait(self._every_s)

    def _ask(self, questions: Iterable[Callable[[Any, Any], float]]) -> list[float]:
        answers = []
        for question in questions:
            try:
                answers.append(float(question(self._nvml, self._handle)))
            except self._nvml.NVMLError:
                answers.append(math.nan)
        return answers

    def _watch(self, sample: list[float]) -> None:
        """Record the highest clock, and whether heat or a power brake slows the GPU down."""
        clock = sample[NVML_NAMES.index("gpu_clock_mhz")]
        if math.isfinite(clock):
            self._highest_mhz = max(self._highest_mhz, clock)
        (reasons,) = self._ask([lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)])
        if math.isfinite(reasons):
            self._slowed.append(bool(int(reasons) & SLOWED))

    def describe(self) -> dict[str, float | None]:
        """Return the configured limits and the observations so far, named as in `GPU_FACTS`."""
        limits, slowed = self._ask(LIMITS.values()), list(self._slowed)
        slowed_pct = 100.0 * sum(slowed) / len(slowed) if slowed else math.nan
        found = zip(GPU_FACTS, (*limits, self._highest_mhz, slowed_pct), strict=True)
        return {name: value if math.isfinite(value) else None for name, value in found}

    def take(self) -> list[float]:
        """Return means since the previous call, in the order of `NVML_NAMES`; the previous ones without new samples."""
        samples, self._samples = self._samples, []
        if samples:
            self._last = [sum(column) / len(column) for column in zip(*samples, strict=True)]
        return self._last

    def stop(self) -> None:
        """Stop the thread without waiting for an answer of NVML."""
        self._stopped.set()
        self.join(timeout=1.0)


def open_sampler(device: str) -> Sampler | None:
    """Return a running sampler for this CUDA device, or None after logging the reason."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        log.warning("no GPU utilisation, temperature and power: the package nvidia-ml-py is not installed")
        return None
    try:
        nvml.nvmlInit()
        # by UUID: NVML counts all GPUs of the node, CUDA only the GPUs in CUDA_VISIBLE_DEVICES
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except nvml.NVMLError as failure:
        log.warning("no GPU utilisation, temperature and power: %s", failure)
        return None
    sampler = Sampler(nvml, handle)
    sampler.start()
    return sampler


STAT = Path("/proc/stat")
PROCESSES = Path("/proc")
CONTROL_GROUP = Path("/proc/self/cgroup")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SAMPLE_LOAD_EVERY_S = 1.0
MOST_COST = 1 / 200
"""Share of the time that samples may take: on a host with thousands of processes they are taken less often."""
MOST_SAMPLES = 4096
"""Samples of a run's load; beyond them, every second sample is dropped."""


class _Load(NamedTuple):
    """Seconds since 1970, and CPU seconds: of this process, its run and all processes, and of waiting in its group."""

    time_s: float
    own_s: float
    run_s: float
    busy_s: float
    waited_s: float


class MachineLoad:
    """The load of this rank's machine since the call.

    A container sees the processors of its whole node, but only the pressure of its own control group. Processes of the
    run are the launcher and all that it started; in a rehearsal also the rehearsal's MLflow server and other launchers.
    They are counted by the first rank of a machine, and only if the control group reports no pressure.
    """

    def __init__(self, stat: Path = STAT, pressure: Path | None = None, *, local_rank: int = 0) -> None:
        self._stat = stat
        self._pressure = pressure or find_pressure()
        counts_run = local_rank == 0 and math.isnan(read_waited_s(self._pressure))
        root = os.environ.get(REHEARSAL_PID) or os.environ.get(LAUNCHER_PID) or 0
        self._root = int(root) if counts_run else 0
        self._every_s = SAMPLE_LOAD_EVERY_S
        self._samples = [self._read()]

    def sample(self) -> None:
        """Take a sample if a second has passed since the previous one."""
        if time.time() - self._samples[-1].time_s < self._every_s:
            return
        began_s = time.perf_counter()
        self._samples.append(self._read())
        self._every_s = max(self._every_s, (time.perf_counter() - began_s) / MOST_COST)
        if len(self._samples) > MOST_SAMPLES:
            self._samples, self._every_s = self._samples[::2], 2 * self._every_s

    def describe(self, span_s: tuple[float, float] | None = None) -> dict[str, float | None]:
        """Return the fields in docs/formats.md; null if the system does not report one.

        Args:
            span_s: start and end of the timed steps in seconds since 1970; None = all the time.
        """
        samples = [*self._samples, self._read()]
        begin_s, end_s = span_s or (samples[0].time_s, samples[-1].time_s)
        first = next((each for each in reversed(samples) if each.time_s <= begin_s), samples[0])
        last = next((each for each in samples if each.time_s >= end_s), samples[-1])
        seconds, own_s, run_s, busy_s, waited_s = (now - then for now, then in zip(last, first, strict=True))
        return {
            "cores": float(os.cpu_count() or 1),
            "seconds": seconds,
            "own_cpu_s": own_s,
            "run_cpu_s": run_s if math.isfinite(run_s) else None,
            "busy_cpu_s": busy_s if math.isfinite(busy_s) else None,
            "cpu_pressure_pct": 100.0 * waited_s / seconds if seconds and math.isfinite(waited_s) else None,
        }

    def _read(self) -> _Load:
        return _Load(
            time.time(),
            time.process_time(),
            read_tree_s(self._root) if self._root else math.nan,
            read_busy_s(self._stat),
            read_waited_s(self._pressure),
        )


def read_tree_s(root: int, processes: Path = PROCESSES) -> float:
    """Return the CPU seconds of a process and all its descendants, ended ones included; NaN if it does not exist."""
    parents, seconds = {}, {}
    for entry in processes.glob("[0-9]*"):
        try:
            _state, parent, *rest = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(parent)
            seconds[int(entry.name)] = sum(map(int, rest[9:13])) / TICKS_PER_S  # utime, stime, cutime, cstime
        except (OSError, ValueError):  # it has ended
            continue
    if root not in parents:
        return math.nan
    tree = {root}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return sum(seconds[pid] for pid in tree)


def read_busy_s(stat: Path) -> float:
    """Return the CPU time of all processes since boot in seconds, without idle and disk wait; NaN if unavailable."""
    try:
        _name, user, nice, system, _, _, interrupts, soft, *_ = stat.read_text().splitlines()[0].split()
        return sum(map(int, (user, nice, system, interrupts, soft))) / TICKS_PER_S
    except (OSError, ValueError, IndexError):
        return math.nan


def find_pressure(own: Path = CONTROL_GROUP, groups: Path = CONTROL_GROUPS) -> Path:
    """Return the path of cpu.pressure of this process's control group (version 2), which may not exist."""
    try:
        named = next((line for line in own.read_text().splitlines() if line.startswith("0::/")), "0::/")
    except OSError:
        named = "0::/"
    return groups / named.removeprefix("0::/") / "cpu.pressure"


def read_waited_s(pressure: Path) -> float:
    """Return the seconds in which a process of the control group waited for a processor; NaN if unavailable.

    Counted since the group was created. Kernel: Documentation/accounting/psi.rst.
    """
    try:
        some = pressure.read_text().splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6 if some.startswith("some ") else math.nan
    except (OSError, ValueError, IndexError):
        return math.nan


def sum_up_load(ranks: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the load for summary.json, during the timed steps, of the machine with the most other work.

    Returns:
        cpu_pressure_pct: share of the time in which a process of the run's control group waited for a processor.
        other_cpu_pct: share of the machine's processors that processes of other programs used.

    Args:
        ranks: the facts of every rank, with `host` and `machine`.
    """
    shares = []
    for host in dict.fromkeys(rank["host"] for rank in ranks):
        found = [rank["machine"] for rank in ranks if rank["host"] == host]
        busy_s, seconds = found[0]["busy_cpu_s"], found[0]["seconds"]
        if busy_s is not None and seconds:
            run_s = found[0].get("run_cpu_s")
            others_s = busy_s - (sum(each["own_cpu_s"] for each in found) if run_s is None else run_s)
            shares.append(100.0 * max(others_s, 0.0) / (found[0]["cores"] * seconds))
    waited = [pct for rank in ranks if (pct := rank["machine"]["cpu_pressure_pct"]) is not None]
    return {"cpu_pressure_pct": max(waited, default=None), "other_cpu_pct": max(shares, default=None)}
