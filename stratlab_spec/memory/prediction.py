"""Predict a run's memory by cause, compare it with its devices, and find settings that need less and train the same.

    question ─▶ operations file (profiles.py) ─▶ peak by cause ─▶ on the device ─▶ verdict at the gate ─▶ options

Constants add the device's further memory, each with its source.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from stratlab_spec.memory.extrapolation import HOST, Peak
from stratlab_spec.memory.profiles import (
    CUDA,
    FOLDER,
    GIB,
    OperationsFile,
    Question,
    ask_of_run,
    find_operations,
    read_operations,
)
from stratlab_spec.memory.simulated import CannotStart, Simulated, simulate_run
from stratlab_spec.memory.step_prediction import NotRecorded
from stratlab_spec.settings.config import Config
from stratlab_spec.strategies import STRATEGIES

GATE = 0.85
"""Share of a device. Above it steps become slow before they fail: nanotron's table (H100, 80 GB) has 17 rows with
70.8 GB and more; 16 of them are 3 to 12 times slower than the same layout with half the micro-batch."""
RESERVED_PER_ALLOCATED = 1.04
"""Device memory that torch's allocator takes for each allocated byte: median of 43 published rows of SimuMax (B200),
1.028 to 1.093. On an H200 with room to spare 1.005 to 1.226, median 1.094, more than it needs."""
CONTEXT_GIB = 1.3
"""CUDA's context, the kernels' code, and NCCL with one rank: 1.28 to 1.31 in seven of eight runs of ours on an H200
(torch 2.11, CUDA 13, driver 580; the eighth, zero2, 1.69). Without NCCL 0.75."""
COMMUNICATOR_GIB = 0.37
"""NCCL's buffers of one group of ranks: 0.34 to 0.39 in the same rows."""
WORKSPACE_GIB = 64 / 1024
"""cuBLAS: 32 MiB on Hopper and Blackwell for a handle and its stream (torch, CUDAContext), one of the training
thread, one of autograd's. In the allocator's own count, 53 of 67 runs of one rank on an H100 and an H200 are 64 to
106 MiB above the engines' allocations, 12 more, 2 less (docs/gpu.md)."""
AXES_BESIDE_DATA = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
FORECAST = "memory_forecast"
"""Its place in `resolved` of config.json."""
SMALLEST_GIB = 0.005
UPDATE = "optimizer"
"""A window of a count (trainer/memory_estimation/timeline.py)."""
STATE = ("parameters", "master copies", "gradients", "gradient buckets", "optimizer state", "teacher")
"""Causes that no micro-batch and no recomputation makes smaller."""

log = logging.getLogger("trainer")


class Verdict(StrEnum):
    """The verdict about a peak and a device."""

    FITS = "fits"
    NEAR_FULL = "too near full"
    NOT = "does not fit"


@dataclass(frozen=True)
class Device:
    """One rank's device memory, and its fixed part for any model. `groups`: communicators of the rank."""

    gib: float
    groups: int

    @property
    def fixed_gib(self) -> float:
        """CUDA's context, cuBLAS's workspaces, NCCL's buffers of each group."""
        return CONTEXT_GIB + WORKSPACE_GIB + COMMUNICATOR_GIB * self.groups

    def needs_gib(self, peak_bytes: int) -> float:
        """Return the need on the device for a peak of the engines, including the allocator's overhead."""
        return RESERVED_PER_ALLOCATED * peak_bytes / GIB + self.fixed_gib

    @property
    def most_bytes(self) -> float:
        """Return the largest peak of the engines that fits."""
        return (GATE * self.gib - self.fixed_gib) * GIB / RESERVED_PER_ALLOCATED

    def judge(self, peak_bytes: int) -> Verdict:
        needed = self.needs_gib(peak_bytes)
        if needed <= GATE * self.gib:
            return Verdict.FITS
        return Verdict.NEAR_FULL if needed <= self.gib else Verdict.NOT


def count_groups(file: OperationsFile | Simulated, ranks: int) -> int:
    """Return the number of a rank's communicators: one of all ranks, and one per axis if there are several."""
    if ranks == 1:
        return 0
    several = sum(file.axes.get(name, 1) > 1 for name in AXES_BESIDE_DATA)
    return 1 + (several if several > 1 else 0)


@dataclass(frozen=True)
class Forecast:
    """The memory forecast of a run's fullest rank, on a device of any size.

    Attributes:
        workspace_gib: of cuBLAS, in the allocator's own count; 0 on a CPU.
        at_most: the file was counted with several micro-batches, the run has one.
    """

    question: Question
    file: OperationsFile | Simulated
    workspace_gib: float
    at_most: bool

    def peak_of(self, rows: int) -> Peak:
        """Return the peak with micro-batches of `rows`."""
        return self.file.peak(rows, self.question.ranks, self.question.layers)

    @cached_property
    def peak(self) -> Peak:
        return self.peak_of(self.question.rows)

    def window(self, name: str) -> Peak:
        """Return the same rank's memory in another window.

        UPDATE is when parameters, gradients and the optimizer's state all exist; HOST is host memory.
        """
        asked = self.question
        return self.file.window(name, self.peak.rank, asked.rows, asked.ranks, asked.layers)

    def on(self, device_gib: float) -> Device:
        """Return a device of this size with this run's communicators."""
        return Device(device_gib, count_groups(self.file, self.question.ranks))

    @property
    def peak_gib(self) -> float:
        return self.peak.total / GIB

    @property
    def least_gib(self) -> float:
        """Return the need on the device if the allocator had no overhead."""
        return self.peak_gib + self.on(0).fixed_gib

    @property
    def on_device_gib(self) -> float:
        """Return the need on the device with the allocator's overhead."""
        return self.on(0).needs_gib(self.peak.total)

    def as_dict(self) -> dict[str, Any]:
        """Return the forecast for config.json. Its causes sum to the peak."""
        moments = {"causes_gib": self.peak, "update_gib": self.window(UPDATE), "host_gib": self.window(HOST)}
        return {
            "operations_file": self.file.path.name,
            "key": self.file.key,
            "peak_gib": self.peak_gib,
            "workspace_gib": self.workspace_gib,
            "on_device_gib": self.on_device_gib,
            "at_most": self.at_most,
            "window": self.peak.window,
            "rank": self.peak.rank,
            **{
                name: {cause: size / GIB for cause, size in moment.causes.items()}
                for name, moment in moments.items()
            },
        }

    def describe(self) -> str:
        """Return `74.10 GiB on the device, 70.35 of them the engine's: activations 30.12, ...`."""
        causes = sorted(self.peak.causes.items(), key=lambda cause: -cause[1])
        told = ", ".join(f"{name} {size / GIB:.2f}" for name, size in causes if size >= SMALLEST_GIB * GIB)
        kept = self.window(HOST).total / GIB
        beside = f"; at least {kept:.2f} GiB of each rank in host memory" if kept else ""
        most = "<= " if self.at_most else ""
        engine = f"{most}{self.peak_gib:.2f} of them the engine's"
        return f"{most}{self.on_device_gib:.2f} GiB on the device, {engine}: {told}{beside}"

    def advise(self, config: Config, device_gib: float) -> str:
        """Return settings to try next, as a user types them: the largest micro-batch that fits, or settings that need
        less memory.
        """
        device = self.on(device_gib)
        if device.judge(0) is not Verdict.FITS:
            fixed = f"{device.fixed_gib:.2f} GiB of each are CUDA's context and communicators"
            return f"larger devices: {fixed}, whatever the settings"
        for rows in self.question.list_smaller(self.file.share(self.question.ranks)):
            if device.judge(held := self.peak_of(rows).total) is Verdict.FITS:
                needed = f"{device.needs_gib(held):.2f} GiB at the same global batch"
                return f"run.config.micro_batch_size={rows}, which needs {needed}"
        state = sum(self.peak_of(1).causes.get(cause, 0) for cause in STATE)
        useless = {"micro_batch_size"}
        if device.judge(state) is not Verdict.FITS:  # fewer activations are not enough
            useless.add("activation_checkpointing")
        rest = [one for one in find_remedies(config, self.question.ranks) if not useless & one.keys()]
        return describe_remedies(rest[:1]) or "more or larger devices"


def read_pod_operations(config: Config, more: Sequence[Path] = ()) -> list[OperationsFile]:
    """Return the files that a pod knows: of the folders `more`, and of its volume.

    An unreadable file is logged and left out: it must not keep a run from starting.
    """
    folders = (*more, Path(config.results) / FOLDER)
    return [
        *read_operations(
            folders,
            lambda wrong: log.warning("%s: no operations file, left out: %s", wrong.path, wrong.why),
        )
    ]


def forecast_memory(
    config: Config,
    ranks: int,
    per_node: int,
    rules: str = CUDA,
    files: Sequence[OperationsFile] | None = None,
) -> Forecast | None:
    """Return the predicted memory of a rank of this run, from a file that counted it or from recorded steps; None if it
    is off, or if neither answers.

    Args:
        per_node: ranks that share a node.
        rules: of which device; files counted by another device's rules are searched last.
        files: None = the files that a pod knows.
    """
    if not config.memory_forecast or config.mode != "train":
        return None
    question = ask_of_run(config, ranks, per_node)
    file: OperationsFile | Simulated | None
    file = find_operations(read_pod_operations(config) if files is None else files, question, rules)
    try:
        file = file or simulate_run(question)
    except (CannotStart, NotRecorded) as reason:
        log.debug("memory_forecast: no recorded steps for %s", reason)
        return None
    workspace_gib = WORKSPACE_GIB if rules == CUDA else 0.0
    return Forecast(question, file, workspace_gib, file.is_upper_bound(question))


Settings = dict[str, str | int]


def find_remedies(config: Config, world_size: int) -> list[Settings]:
    """Return settings to change, each entry on top of the earlier ones. The samples of a step stay unchanged.

    In this order: fewer samples at once, recomputed activations, a strategy that holds less, host memory.
    """
    found: list[Settings] = []
    micro = config.micro_batch_size
    if micro > 1:
        smallest = next(factor for factor in range(2, micro + 1) if micro % factor == 0)
        found.append({"micro_batch_size": micro // smallest})
    if config.activation_checkpointing != "blocks":
        found.append({"activation_checkpointing": "blocks"})
    strategy = str(config.strategy)
    if world_size > 1 and (less := STRATEGIES[strategy].holds_less):
        strategy = less
        found.append({"strategy": strategy})
    places = ("none", *STRATEGIES[strategy].offload)
    known = places.index(config.offload) if config.offload in places else 0
    return found + [{"offload": place} for place in places[known + 1 :]]


def describe_remedies(remedies: list[Settings]) -> str:
    """Return settings as a user types them, in order.

    `run.config.micro_batch_size=16, then run.config.activation_checkpointing=blocks`
    """
    return ", then ".join(f"run.config.{name}={value}" for each in remedies for name, value in each.items())
