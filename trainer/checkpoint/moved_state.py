"""The state of one engine under another one: plain tensors by the names of the model, whoever wrote them.

torch.distributed.checkpoint              ┐                        ┌  torch's own reader, which reshards: any mesh
(single, ddp, fsdp, hsdp, nd)             ├─  names of the model  ─┤
DeepSpeed (zero1, zero2, zero3, zeropp)   ┘   weights and moments  └  engines/deepspeed_place.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer.checkpoint import native_files
from trainer.checkpoint.native_files import NativeTensors, read_sharded
from trainer.checkpoint.shards import take_local
from trainer.checkpoint.zero_files import ZeroTensors, is_zero
from trainer.settings.config import ConfigError

STATE = "state."
"""What the names of an optimizer's tensors begin with; its settings have another beginning."""


class PlainTensors(Protocol):
    """Whole tensors of a checkpoint."""

    def weight(self, name: str) -> Tensor | None:
        """A parameter or buffer; None where none has this name."""

    def moments(self, name: str) -> dict[str, Tensor]:
        """What the optimizer keeps of a parameter."""

    def loss_scale(self) -> Tensor:
        """Of LossScale."""


def open_tensors(folder: Path) -> PlainTensors:
    """What an engine's folder holds.

    Raises:
        ConfigError: nothing that an engine writes, or files that are not plain.
    """
    if is_zero(folder):
        return ZeroTensors(folder)
    if not (folder / native_files.FILE).is_file():
        raise ConfigError([f"{folder}: holds no state of an engine [SL-no-engine-state]"])
    return NativeTensors(folder)


def read_state(state: dict[str, Any], folder: Path) -> None:
    """Fills {"model", "optimizer", "loss_scale"} of a native engine, whatever wrote the folder; collective.

    Raises:
        ConfigError: the folder lacks a tensor, or has it in another shape.
    """
    if is_zero(folder):
        fill_state(state, ZeroTensors(folder))
    else:
        read_sharded(state, folder)


@torch.no_grad()
def fill_state(state: dict[str, Any], source: PlainTensors) -> None:
    """The same from plain tensors; each rank takes its part. What the optimizer was set to stays as it is."""
    for name, value in state["model"].items():
        _put(value, find_weight(source, name), name)
    wanted: dict[str, list[str]] = {}
    for key in state["optimizer"]:
        if key.startswith(STATE):
            name, _, leaf = key.removeprefix(STATE).rpartition(".")
            wanted.setdefault(name, []).append(leaf)
    for name, leaves in wanted.items():
        moments = source.moments(name)
        for leaf in leaves:
            if leaf not in moments:
                raise ConfigError(
                    [
                        f"the checkpoint holds no {leaf} of {name}: it is of another optimizer [SL-moment-missing]"
                    ]
                )
            _put(state["optimizer"][f"{STATE}{name}.{leaf}"], moments[leaf], name)
    state["loss_scale"] = source.loss_scale()


def find_weight(source: PlainTensors, name: str) -> Tensor:
    """A parameter or buffer that must be there.

    Raises:
        ConfigError: it is not.
    """
    found = source.weight(name)
    if found is None:
        raise ConfigError([f"the checkpoint holds no {name}: it is of another model [SL-weight-missing]"])
    return found


def _put(target: Tensor, whole: Tensor, name: str) -> None:
    if target.shape != whole.shape:
        raise ConfigError(
            [
                f"{name} is {tuple(whole.shape)} in the checkpoint and {tuple(target.shape)} here [SL-weight-shape]"
            ]
        )
    if isinstance(target, DTensor):
        target.to_local().copy_(take_local(whole, target))
    else:
        target.copy_(whole)
