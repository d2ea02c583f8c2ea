"""Whether the state of a language model can be held at all, before torch is imported: refused, never sharded silently.

Counted is what a process holds between two steps (trainer/layout/decoder_memory.py). Activations come on top, so
that what is refused here cannot run, and what is not refused may still run out of memory.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from typing import Any

from trainer.layout.axes import Axes
from trainer.layout.choice import resolve_on_device
from trainer.layout.decoder_memory import describe_ranks
from trainer.layout.resolve import Layout
from trainer.settings.config import Config
from trainer.settings.strategy_table import STRATEGIES
from trainer.shapes.decoder_shapes import DecoderShape
from trainer.shapes.teacher_rules import count_teacher_bytes

GIB = 1 << 30

log = logging.getLogger("trainer")


def fit_problems(
    config: Config, world_size: int, shape: DecoderShape, device_bytes: int | None
) -> Iterator[str]:
    """A sentence if a process would hold more than a device has.

    Args:
        device_bytes: of the largest device here; None = not known, and nothing is said.
    """
    counted = config.strategy == "nd" or STRATEGIES[config.strategy].holds_whole_model
    if not counted or not device_bytes or config.mode != "train":
        return
    if config.strategy == "nd":
        layout = resolve_on_device(config, world_size, shape, device_bytes)
    else:
        layout = _build_layout(Axes(dp_replicate=world_size))
    held = _largest(config, shape, layout)
    if held <= device_bytes:  # what else a layout needs, launch/foreseen_memory.py asks
        return
    name = f"TRAINER_STRATEGY={config.strategy}" + (f", {layout.name}" if config.strategy == "nd" else "")
    taught = " and its teacher" if config.teacher else ""
    yield (
        f"{name}: a process holds {held / GIB:.1f} GiB of weights, gradients and optimizer state of "
        f"{config.model_name}{taught}, and its device has {device_bytes / GIB:.1f} GiB; "
        f"{_advice(config, world_size, shape, device_bytes)} [SL-state-over-device]"
    )


def _advice(config: Config, world_size: int, shape: DecoderShape, device_bytes: int) -> str:
    """The setting with which it would fit."""
    shared = _largest(config, shape, _build_layout(Axes(dp_shard=world_size)))
    if world_size > 1 and shared < device_bytes:
        return f"TRAINER_STRATEGY=fsdp shares them out, {shared / GIB:.1f} GiB for each of {world_size} processes"
    whole = _largest(config, shape, _build_layout(Axes()))
    teacher = count_teacher_bytes(config)  # on every process, whole
    if teacher >= device_bytes:
        return f"its teacher alone takes {teacher / GIB:.1f} GiB on each; take a smaller one"
    least = (whole - teacher) // (device_bytes - teacher) + 1
    lora = "" if config.lora_rank else ", or train adapters alone: TRAINER_LORA_RANK=16"
    lora += ", TRAINER_INIT=pretrained" if lora and config.init == "scratch" else ""
    return f"TRAINER_STRATEGY=fsdp shares them out over more processes, here at least {least}{lora}"


def _largest(config: Config, shape: DecoderShape, layout: Layout) -> int:
    return max(rank.total_bytes for rank in describe_ranks(config, shape, layout))


def _build_layout(axes: Axes) -> Layout:
    return Layout(axes, sequence_parallel=False, dimensions=1, missing=(), reason="")


def largest_device_bytes() -> int | None:
    """Memory of the largest GPU here, asked without torch; None where there is none, or no answer.

    The largest, because NVML counts all GPUs of the machine, also those that CUDA_VISIBLE_DEVICES takes from a process.
    """
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # no driver, or a driver without the library: the package has an exception for each
        return None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return max((_usable_bytes(nvml, handle) for handle in handles), default=None)
    except nvml.NVMLError as failure:  # a slice of a GPU may not ask for the whole one's
        log.warning("the memory of the GPUs is not known: %s", failure)
        return None
    finally:
        nvml.nvmlShutdown()


def _usable_bytes(nvml: Any, handle: Any) -> int:
    """Without what the driver keeps back, half a GiB of an H100, which is in `total` and which no process gets."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError):  # a driver before 510, or its library
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    return int(memory.total) - int(memory.reserved)
