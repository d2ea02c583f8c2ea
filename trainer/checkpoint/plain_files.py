"""DeepSpeed's checkpoint files read as tensors and plain values, without DeepSpeed and without running anything.

Of its classes two stand in the files, and of older ones an enum (trainer/engines/deepspeed_files.py); what is put in
their place here holds the same numbers and does nothing.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

from trainer.settings.config import ConfigError


class Fragment:
    """deepspeed.utils.tensor_fragment.fragment_address: `numel` elements from `start` on."""

    numel: int
    start: int


class Scaler:
    """deepspeed.runtime.fp16.loss_scaler.LossScaler: a number, the lab has its own (loss_scale.py)."""


class Stage(IntEnum):
    """deepspeed.runtime.zero.config.ZeroStageEnum."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3


def read_stage(owner: object, name: object) -> Any:
    """Stands for `getattr` where a file is read: of that one enum, and of nothing else.

    Raises:
        ValueError: another object, or a name that is no member.
    """
    members = Stage.__members__
    if owner is not Stage or name not in members:
        raise ValueError(f"getattr of {owner!r}, {name!r}")
    return members[str(name)]


STAND_INS: list[Any] = [
    (Scaler, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (Fragment, "deepspeed.utils.tensor_fragment.fragment_address"),
    (Stage, "deepspeed.runtime.zero.config.ZeroStageEnum"),
    (read_stage, "builtins.getattr"),
]


def read_plain(file: Path) -> Any:
    """The content; its tensors stay in the file until they are looked at.

    Raises:
        ConfigError: the file holds anything but tensors, plain values and the classes above, or is damaged.
    """
    with torch.serialization.safe_globals(STAND_INS):
        try:
            return torch.load(file, weights_only=True, map_location="cpu", mmap=True)
        except Exception as failure:
            reason = find_reason(failure)
            raise ConfigError([describe_refused(file, reason)]) from failure


def refuse_code(folder: Path) -> None:
    """Opens every file as plain tensors first: DeepSpeed would run whatever a pickle contains.

    Raises:
        ConfigError: naming each file that holds anything else.
    """
    problems = []
    for file in sorted(folder.rglob("*.pt")):
        try:
            read_plain(file)
        except ConfigError as failure:
            problems += failure.problems
    if problems:
        raise ConfigError(problems)


def describe_refused(place: Path, reason: str) -> str:
    """A sentence for a file, or a folder of files, that holds more than plain tensors, or less."""
    return f"{place}: refused, not plain tensors or damaged: {reason} [SL-tensors-not-plain]"


def find_reason(failure: Exception) -> str:
    """torch says the reason at the end of advice for whoever loads files by hand, or in a paragraph below it."""
    _, mark, reason = str(failure).rpartition("WeightsUnpickler error: ")
    if not mark and reason.startswith("Weights only load failed"):
        reason = reason.partition("\n\n")[2]
    return reason.strip().split("\n")[0][:200] or type(failure).__name__
