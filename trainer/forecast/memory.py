"""How much a run will hold, for what, and whether its devices have that; said before its ranks start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.forecast.operations_file import CUDA, OperationsFile, find_operations
from trainer.forecast.scaling import Peak
from trainer.settings.config import Config
from trainer.settings.memory_remedies import describe_remedies, find_remedies

GIB = 1 << 30
RESERVED_PER_ALLOCATED = 1.04
CONTEXT_GIB = 1.3
COMMUNICATOR_GIB = 0.37
WORKSPACE_GIB = 64 / 1024
GATE = 0.85
"""As `stratlab predict` has them, with their sources (docs/predict.md)."""
FORECAST = "memory_forecast"
"""Its place in `resolved` of config.json."""
SMALLEST_GIB = 0.005
UPDATE = "optimizer"
"""A window of a count (trainer/counting/timeline.py)."""
STATE = ("parameters", "master copies", "gradients", "gradient buckets", "optimizer state", "teacher")
"""Causes that no micro-batch and no recomputation makes smaller."""
AXES_BESIDE_DATA = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")


@dataclass(frozen=True)
class Forecast:
    """Of the fullest rank. `at_most`: the file was counted with several micro-batches, the run has one."""

    file: OperationsFile
    peak: Peak
    update: Peak
    """While the optimizer updates: parameters, gradients and its state are all there."""
    host: Peak
    """What is kept in host memory, of each rank."""
    fixed_gib: float
    workspace_gib: float
    """Of cuBLAS, in the allocator's own count; none on a CPU."""
    at_most: bool

    @property
    def peak_gib(self) -> float:
        return self.peak.total / GIB

    @property
    def least_gib(self) -> float:
        """On the device, if the allocator took no byte more than it is asked for."""
        return self.peak_gib + self.fixed_gib

    @property
    def on_device_gib(self) -> float:
        """With what the allocator takes besides."""
        return RESERVED_PER_ALLOCATED * self.peak_gib + self.fixed_gib

    def as_dict(self) -> dict[str, Any]:
        """For config.json. Causes add up to the peak."""
        return {
            "operations_file": self.file.path.name,
            "key": self.file.key,
            "peak_gib": self.peak_gib,
            "workspace_gib": self.workspace_gib,
            "on_device_gib": self.on_device_gib,
            "at_most": self.at_most,
            "window": self.peak.window,
            "rank": self.peak.rank,
            "causes_gib": {name: size / GIB for name, size in self.peak.causes.items()},
            "update_gib": {name: size / GIB for name, size in self.update.causes.items()},
            "host_gib": {name: size / GIB for name, size in self.host.causes.items()},
        }

    def describe(self) -> str:
        """`74.10 GiB on the device, 70.35 of them the engine's: activations 30.12, ...`."""
        causes = sorted(self.peak.causes.items(), key=lambda cause: -cause[1])
        told = ", ".join(f"{name} {size / GIB:.2f}" for name, size in causes if size >= SMALLEST_GIB * GIB)
        kept = self.host.total / GIB
        beside = f"; at least {kept:.2f} GiB of each rank in host memory" if kept else ""
        most = "<= " if self.at_most else ""
        engine = f"{most}{self.peak_gib:.2f} of them the engine's"
        return f"{most}{self.on_device_gib:.2f} GiB on the device, {engine}: {told}{beside}"


def forecast_memory(
    config: Config, ranks: int, per_node: int, rules: str = CUDA, folders: Sequence[Path] = ()
) -> Forecast | None:
    """What a rank of this run will hold; None where it is not asked for, or no operations file answers.

    Args:
        per_node: ranks that share a node.
        rules: of which device; files that were counted by those of another one go last.
        folders: of further operations files, which go first.
    """
    if not config.memory_forecast or config.mode != "train":
        return None
    file = find_operations(config, ranks, per_node, rules, folders)
    if file is None:
        return None
    at_most = file.accumulates and file.micro_batches(config, ranks) == 1
    peak = file.peak(config, ranks)
    update = file.window(UPDATE, peak, config, ranks)
    host = file.host(peak, config, ranks)
    workspace_gib = WORKSPACE_GIB if rules == CUDA else 0.0
    return Forecast(file, peak, update, host, _fixed_gib(file, ranks), workspace_gib, at_most)


def advise(config: Config, ranks: int, file: OperationsFile, device_gib: float) -> str:
    """What to try next, as a user types it: the largest micro-batch that fits, or what holds less."""
    fixed, most = _fixed_gib(file, ranks), GATE * device_gib
    if fixed > most:
        return f"larger devices: {fixed:.2f} GiB of each are CUDA's context and communicators, whatever the settings"
    for rows in _divisors(config.micro_batch_size):
        less = config.model_copy(update={"micro_batch_size": rows})
        gib = RESERVED_PER_ALLOCATED * file.peak(less, ranks).total / GIB + fixed
        if gib <= most:
            return f"run.config.micro_batch_size={rows}, which needs {gib:.2f} GiB at the same global batch"
    smallest = file.peak(config.model_copy(update={"micro_batch_size": 1}), ranks).causes
    state = sum(smallest.get(cause, 0) for cause in STATE)
    useless = {"micro_batch_size"}
    if RESERVED_PER_ALLOCATED * state / GIB + fixed > most:  # fewer activations are not enough
        useless.add("activation_checkpointing")
    rest = [one for one in find_remedies(config, ranks) if not useless & one.keys()]
    return describe_remedies(rest[:1]) or "more or larger devices"


def _divisors(number: int) -> list[int]:
    """Smaller ones, the largest first."""
    return [rows for rows in range(number // 2, 0, -1) if number % rows == 0]


def _fixed_gib(file: OperationsFile, ranks: int) -> float:
    """CUDA's context, cuBLAS's workspaces, NCCL's buffers of each group of the rank."""
    axes = file.samples[0]["axes"]
    several = sum(axes.get(name, 1) > 1 for name in AXES_BESIDE_DATA)
    groups = 0 if ranks == 1 else 1 + (several if several > 1 else 0)
    return CONTEXT_GIB + WORKSPACE_GIB + COMMUNICATOR_GIB * groups
