"""The layouts of strategy nd for a given device memory: possible ones, their needs, and the choice of `auto`.

    list_candidates ─▶ measure_needs ─▶ choose_layout: the first one that is not known to exceed the device

The need comes from an operations file or recorded steps. Without both it is at least the model's state, which a
process holds between two steps (model_state.py). `fit_problems` rejects by the state only, before torch is imported.
Activations come on top, so that a rejected run cannot work, and an accepted one may still run out of memory.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratlab_spec.layout.axes import Axes
from stratlab_spec.layout.layout_rules import broken_layout_rules
from stratlab_spec.layout.nd_layout import (
    FIRST_DIMENSIONS,
    OWN_SEQUENCE_AXIS_FROM,
    Layout,
    build_layout,
    find_ep,
    resolve_layout,
)
from stratlab_spec.memory.model_state import RankMemory, describe_ranks
from stratlab_spec.memory.prediction import (
    describe_remedies,
    find_remedies,
    forecast_memory,
    read_pod_operations,
)
from stratlab_spec.memory.profiles import GIB, OperationsFile
from stratlab_spec.models.teacher import count_teacher_bytes
from stratlab_spec.settings.config import Config
from stratlab_spec.strategies import ND_AXES, STRATEGIES

if TYPE_CHECKING:
    from stratlab_spec.models.decoder import DecoderShape

STATE = "state alone"
"""Source of a need without an operations file."""
MOST_LEFT_OUT = 3
"""Layouts that a sentence names."""

log = logging.getLogger("trainer")


@dataclass(frozen=True)
class Need:
    """The memory need of a layout."""

    layout: Layout
    gib: float
    """As `stratlab predict` has it; without a file weights, gradients and optimizer state, which is a lower bound."""
    causes_gib: dict[str, float]
    source: str
    """An operations file's name, or STATE."""
    at_most: bool = False
    """An upper bound: a layout that exceeds a device by it may still fit."""

    def exceeds(self, device_gib: float) -> bool:
        """Return whether it is known not to fit."""
        return self.gib > device_gib and not self.at_most

    @property
    def largest(self) -> str:
        """`activations 60.20`: the cause that takes most."""
        name = max(self.causes_gib, key=lambda cause: self.causes_gib[cause])
        return f"{name} {self.causes_gib[name]:.2f}"

    def describe(self) -> str:
        """Return `pp2.dp4 needs 92.10 GiB (most of it activations 60.20; nd-2d.json)`."""
        least = "at least " if self.source == STATE else "<= " if self.at_most else ""
        return (
            f"{self.layout.name} needs {least}{self.gib:.2f} GiB (most of it {self.largest}; {self.source})"
        )


@dataclass(frozen=True)
class Choice:
    """The result of `auto`."""

    layout: Layout
    """The layout that fits, with the reason; without any, the layout with the smallest need."""
    need: Need | None
    """None if memory does not matter."""
    left_out: Sequence[Need]
    """Known to exceed the device."""
    fits: bool

    def describe_left_out(self, device_gib: float) -> str:
        """Return one sentence about layouts left out; "" without any."""
        if not self.left_out:
            return ""
        named = "; ".join(need.describe() for need in self.left_out[:MOST_LEFT_OUT])
        more = len(self.left_out) - MOST_LEFT_OUT
        rest = f"; and {more} more" if more > 0 else ""
        return f"left out, for a device has {device_gib:.2f} GiB: {named}{rest}"

    def explain_refusal(self, config: Config, device_gib: float) -> str:
        """If no layout fits: name those left out, the causes of the smallest need, and settings to try first."""
        assert self.need
        rest = find_remedies(config, self.layout.axes.world_size)
        if self.need.source == STATE:  # smaller batches and recomputation do not change the state
            rest = [each for each in rest if "offload" in each or "strategy" in each]
        weights = ", run.config.init=pretrained" if config.init == "scratch" else ""
        advice = describe_remedies(rest[:1]) or (
            f"more processes, or adapters alone (run.config.lora_rank=16{weights})"
        )
        return (
            f"{self.describe_left_out(device_gib)}; the least is {self.need.gib:.2f} GiB of {self.layout.name}, most "
            f"of it {self.need.largest}; try {advice}"
        )


def choose_on_device(
    config: Config, world_size: int, shape: DecoderShape, device_bytes: int | None
) -> Choice:
    """Return the layout of a run of strategy nd on devices of this memory; None = unknown, so that memory does not
    matter.
    """
    if device_bytes is None or not depends_on_device(config):
        return Choice(resolve_layout(config, world_size, shape), None, (), fits=True)
    return choose_layout(measure_needs(config, world_size, shape), device_bytes)


def depends_on_device(config: Config) -> bool:
    """Return whether there is something to choose by memory."""
    return config.strategy == "nd" and config.layout == "auto" and config.dimensions > 1


def choose_layout(needs: Iterable[Need], device_bytes: float) -> Choice:
    """Return the first of `measure_needs` that is not known to exceed the device; later ones are not measured."""
    device_gib = device_bytes / GIB
    left_out: list[Need] = []
    for need in needs:
        if need.exceeds(device_gib):
            left_out.append(need)
            continue
        choice = Choice(need.layout, need, left_out, fits=True)
        if not (reason := choice.describe_left_out(device_gib)):
            return choice
        if need.source == STATE:
            reason += (
                f"; of {need.layout.name} no operations file tells more than its state, {need.gib:.2f} GiB"
            )
        return replace(choice, layout=replace(need.layout, reason=f"{need.layout.reason}; {reason}"))
    least = min(left_out, key=lambda need: need.gib)
    return Choice(least.layout, least, left_out, fits=False)


def measure_needs(
    config: Config, world_size: int, shape: DecoderShape, folders: Sequence[Path] = ()
) -> Iterator[Need]:
    """Yield the need of each candidate of a run of strategy nd, measured lazily.

    Args:
        folders: of further operations files, which are searched first.

    Raises:
        ConfigError: naming every broken rule.
    """
    candidates = list_candidates(config, world_size, shape)
    files = read_pod_operations(config, folders) if config.memory_forecast else []
    for layout in candidates:
        yield measure_need(config, world_size, shape, layout, files)


def measure_need(
    config: Config, world_size: int, shape: DecoderShape, layout: Layout, files: Sequence[OperationsFile]
) -> Need:
    """Return the need of `layout`, for any layout of `config`.

    A file answers that has counted it under these settings, if they lead to it, or under its degrees as typed.
    """
    given = _give_degrees(config, layout)
    filled = given.model_copy(update={"dp_shard": 0})
    for asked in [*([config] if layout.is_first else []), given, filled]:
        if forecast := forecast_memory(asked, world_size, world_size, files=files):
            causes = {name: size / GIB for name, size in forecast.peak.causes.items()}
            causes["context, libraries, fragmentation"] = forecast.on_device_gib - forecast.peak_gib
            name = forecast.file.path.name
            return Need(layout, forecast.on_device_gib, causes, name, forecast.at_most)
    fullest = _find_fullest(config, shape, layout)
    sizes = {
        "weights": fullest.parameter_bytes,
        "gradients": fullest.gradient_bytes,
        "optimizer state": fullest.optimizer_bytes,
        "teacher": fullest.teacher_bytes,
    }
    causes = {name: size / GIB for name, size in sizes.items() if size}
    return Need(layout, fullest.total_bytes / GIB, causes, STATE)


def as_laid_out(config: Config, layout: Layout | None) -> Config:
    """Return the settings by which an operations file is found for this layout; None = another strategy than nd.

    Settings that lead to the layout without changes stay unchanged.
    """
    return config if layout is None or layout.is_first else _give_degrees(config, layout)


def _give_degrees(config: Config, layout: Layout) -> Config:
    """Return the settings with the degrees of `layout`, as for counting its operations file."""
    typed = {axis: size if (size := getattr(layout.axes, axis)) > 1 else 0 for axis in (*ND_AXES, "ep")}
    split = (
        {}
        if config.sequence_parallel == "auto"
        else {"sequence_parallel": "on" if layout.sequence_parallel else "auto"}
    )
    return config.model_copy(update={"layout": "given", "dimensions": 1, **typed, **split})


def list_candidates(config: Config, world_size: int, shape: DecoderShape) -> list[Layout]:
    """List the layout of the requested dimensions first, then others that keep their promises, largest data axis first.

    A given layout, or one dimension, has no alternatives: one dimension means not to shard.

    Raises:
        ConfigError: the first one breaks a rule.
    """
    first = resolve_layout(config, world_size, shape)
    if not depends_on_device(config):
        return [first]
    others = []
    for axes in _list_axes(config, world_size, shape):
        degrees = (
            f"{axis} {size}"
            for axis in ("pp", "tp", "cp", "dp_shard", "ep")
            if (size := getattr(axes, axis)) > 1
        )
        reason = f"{config.dimensions}D on {axes.world_size} processes: {', '.join(degrees)}"
        layout = build_layout(config, axes, shape, reason)
        keeps = axes != first.axes and not {*layout.missing} - {*first.missing}
        if keeps and not broken_layout_rules(config, world_size, shape, axes, layout.sequence_parallel):
            others.append(layout)
    # of as many processes rather a pipeline, which sends least
    others.sort(key=lambda one: (one.axes.pp * one.axes.tp * one.axes.cp, one.axes.tp, one.axes.cp))
    return [first, *others]


def _list_axes(config: Config, world_size: int, shape: DecoderShape) -> Iterator[Axes]:
    divisors = [size for size in range(1, world_size + 1) if world_size % size == 0]
    allowed = {
        axis: divisors if config.dimensions >= first else [1] for axis, first in FIRST_DIMENSIONS.items()
    }
    if world_size < OWN_SEQUENCE_AXIS_FROM:
        allowed["cp"] = [1]
    for sizes in product(*allowed.values()):
        taken = dict(zip(allowed, sizes, strict=True))
        claimed = taken["pp"] * taken["tp"] * taken["cp"]
        if world_size % claimed == 0:
            yield find_ep(config, shape, Axes(dp_shard=world_size // claimed, **taken))


def fit_problems(
    config: Config,
    world_size: int,
    shape: DecoderShape,
    device_bytes: int | None,
    layout: Layout | None = None,
) -> Iterator[str]:
    """Yield a sentence if a process would hold more than a device has.

    Args:
        layout: of the strategy nd.
        device_bytes: of the largest device here; None = not known, and the check is skipped.
    """
    counted = config.strategy == "nd" or STRATEGIES[config.strategy].holds_whole_model
    if not counted or not device_bytes or config.mode != "train":
        return
    layout = layout or _lay_out(Axes(dp_replicate=world_size))
    held = _find_fullest(config, shape, layout).total_bytes
    if held <= device_bytes:  # what else a layout needs, trainer/launch/memory_limits.py asks
        return
    name = f"TRAINER_STRATEGY={config.strategy}" + (f", {layout.name}" if config.strategy == "nd" else "")
    taught = " and its teacher" if config.teacher else ""
    yield (
        f"{name}: a process holds {held / GIB:.1f} GiB of weights, gradients and optimizer state of "
        f"{config.model_name}{taught}, and its device has {device_bytes / GIB:.1f} GiB; "
        f"{_advise_shards(config, world_size, shape, device_bytes)} [SL-state-over-device]"
    )


def _advise_shards(config: Config, world_size: int, shape: DecoderShape, device_bytes: int) -> str:
    """Return the setting with which it would fit."""
    shared = _find_fullest(config, shape, _lay_out(Axes(dp_shard=world_size))).total_bytes
    if world_size > 1 and shared < device_bytes:
        return f"TRAINER_STRATEGY=fsdp shares them out, {shared / GIB:.1f} GiB for each of {world_size} processes"
    whole = _find_fullest(config, shape, _lay_out(Axes())).total_bytes
    teacher = count_teacher_bytes(config)  # on every process, whole
    if teacher >= device_bytes:
        return f"its teacher alone takes {teacher / GIB:.1f} GiB on each; take a smaller one"
    least = (whole - teacher) // (device_bytes - teacher) + 1
    lora = "" if config.lora_rank else ", or train adapters alone: TRAINER_LORA_RANK=16"
    lora += ", TRAINER_INIT=pretrained" if lora and config.init == "scratch" else ""
    return f"TRAINER_STRATEGY=fsdp shares them out over more processes, here at least {least}{lora}"


def _find_fullest(config: Config, shape: DecoderShape, layout: Layout) -> RankMemory:
    return max(describe_ranks(config, shape, layout), key=lambda rank: rank.total_bytes)


def _lay_out(axes: Axes) -> Layout:
    return Layout(axes, sequence_parallel=False, dimensions=1, missing=(), reason="")


def largest_device_bytes() -> int | None:
    """Return the memory of the largest GPU here, read without torch; None without a GPU or an answer.

    The largest, because NVML counts all GPUs of the machine, including those hidden by CUDA_VISIBLE_DEVICES.
    """
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # no driver, or a driver without the library: the package has an exception for each
        return None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return max((_usable_bytes(nvml, handle) for handle in handles), default=None)
    except nvml.NVMLError as failure:  # a slice of a GPU may not read the whole GPU's
        log.warning("the memory of the GPUs is not known: %s", failure)
        return None
    finally:
        nvml.nvmlShutdown()


def _usable_bytes(nvml: Any, handle: Any) -> int:
    """Return the memory without the driver's reserve: half a GiB of an H100, included in `total` but unavailable to
    processes.
    """
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError):  # a driver before 510, or its library
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    return int(memory.total) - int(memory.reserved)
