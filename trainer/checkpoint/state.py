"""Save and load the state of plain PyTorch strategies with torch.distributed.checkpoint, which reshards when it reads.

saving    Its planner decides which rank writes which tensor, so a tensor on several ranks is copied and written once.
          The plan is rebuilt only when the state has other tensors. Its writer writes. Its collectives are not used,
          so no rank waits for another rank's disk. The copies are in host memory, and training continues meanwhile.
loading   Checkpoints of other engines can be read too:

torch.distributed.checkpoint              ┐                        ┌  torch's own reader, which reshards: any mesh
(single, ddp, fsdp, hsdp, nd)             ├─  names of the model  ─┤
DeepSpeed (zero1, zero2, zero3, zeropp)   ┘   weights and moments  └  trainer/engines/deepspeed_checkpoint.py
"""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemWriter, Metadata
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn.parallel import DistributedDataParallel

from stratlab_spec.settings.config import ConfigError
from trainer.checkpoint import deepspeed_files as native_files
from trainer.checkpoint.deepspeed_files import NativeTensors, ZeroTensors, is_zero, read_sharded
from trainer.distributed.world import gather_objects
from trainer.engine import Written
from trainer.models.mixed_precision import LossScale

ALIGNMENT = 64


class Staging:
    """Reused memory of the size of the largest snapshot so far; allocating it anew takes longer than copying.

    The copies of one snapshot are valid until the next snapshot.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._pinned = False

    @property
    def held_bytes(self) -> int:
        return self._memory.nbytes

    def copy(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return copies on the CPU, each with a storage of its own; blocks until they are complete."""
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        ends = np.cumsum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes], dtype=np.int64).tolist()
        starts = [0, *ends][: len(sizes)]
        on_device = any(tensor.is_cuda for tensor in tensors)
        if ends and ends[-1] > self._memory.nbytes:
            self._take(ends[-1], on_device)
        copies = []
        for tensor, start, size in zip(tensors, starts, sizes, strict=True):
            place = torch.from_numpy(self._memory[start : start + size])  # a storage of exactly these bytes
            copy = place.view(tensor.dtype).view(tensor.shape)
            copies.append(copy.copy_(tensor.detach(), non_blocking=True))
        if on_device:
            torch.cuda.current_stream().synchronize()
        return copies

    def _take(self, size: int, pinned: bool) -> None:
        """Allocate, and pin by registering with CUDA: torch's pinned allocator rounds up to powers of two."""
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._memory.ctypes.data)
        self._memory = np.empty(size, np.uint8)
        self._pinned = False
        if pinned:  # if the system refuses, only copying is slower
            refused = torch.cuda.cudart().cudaHostRegister(self._memory.ctypes.data, size, 0)
            self._pinned = int(refused) == 0


class ShardedStaging:
    """The plan and the copy memory that an engine keeps between snapshots."""

    def __init__(self) -> None:
        self._staging = Staging()
        self._seen: SavePlan | None = None
        self._plan: SavePlan | None = None
        self._metadata: Metadata | None = None

    def take(self, state: dict[str, Any]) -> ShardedSnapshot:
        """Copy this rank's part of `state`; collective."""
        planner = DefaultSavePlanner()
        planner.set_up_planner(state, is_coordinator=dist.get_rank() == 0)
        local = planner.create_local_plan()
        if any(gather_objects(local != self._seen)):
            plans, self._metadata = planner.create_global_plan(gather_objects(local))
            self._plan = _writer(Path()).prepare_global_plan(plans)[dist.get_rank()]
            self._seen = local
        assert self._plan is not None and self._metadata is not None
        found = {item.index: planner.lookup_object(item.index) for item in self._plan.items}
        tensors = [item.index for item in self._plan.items if item.type != WriteItemType.BYTE_IO]
        copies = self._staging.copy([found[index] for index in tensors])
        held = dict(zip(tensors, copies, strict=True))
        values = {index: copy.deepcopy(value) for index, value in found.items() if index not in held}
        return ShardedSnapshot(self._plan, self._metadata, held | values, self._staging.held_bytes)


@dataclass
class ShardedSnapshot:
    """One rank's part of a state; acts as the planner from which torch's writer gets the data."""

    plan: SavePlan
    metadata: Metadata
    held: dict[MetadataIndex, Any]
    held_bytes: int

    def write(self, folder: Path) -> Written:
        if not self.plan.items:
            return Written([], [])
        results = _writer(folder).write_data(self.plan, cast(SavePlanner, self)).wait()
        return Written(sorted({result.storage_data.relative_path for result in results}), results)

    def finish(self, folder: Path, parts: list[Any]) -> list[str]:
        """Write `.metadata`, which locates each piece of each tensor."""
        _writer(folder).finish(copy.copy(self.metadata), parts)
        return [native_files.FILE]

    def resolve_data(self, item: WriteItem) -> torch.Tensor | io.BytesIO:
        held = self.held[item.index]
        if item.type != WriteItemType.BYTE_IO:
            return held
        content = io.BytesIO()
        torch.save(held, content)
        return content


def _writer(folder: Path) -> FileSystemWriter:
    return FileSystemWriter(folder, per_thread_copy_ahead=0)  # the data is in host memory already


def take_local(whole: Tensor, like: DTensor) -> Tensor:
    """Return this rank's part of `whole` in the layout of `like`; a view, without communication.

    fully_shard splits the rest of a parameter after tp or ep, although its axes come first in the mesh: such a
    _StridedShard is applied after the plain ones. Uneven parts follow torch.chunk: the last ones are smaller or empty.
    """
    assert whole.shape == like.shape, f"{tuple(whole.shape)} is not the whole of {tuple(like.shape)}"
    mesh, placements = like.device_mesh, like.placements
    position = mesh.get_coordinate()
    assert position is not None, "this rank is not on the tensor's mesh"
    part = whole
    for axis in _order(placements, mesh.shape):
        dim = placements[axis].dim  # type: ignore[attr-defined]
        length = part.shape[dim]
        size = -(-length // mesh.shape[axis])
        start = min(position[axis] * size, length)
        part = part.narrow(dim, start, min(size, length - start))
    return part


def _order(placements: tuple[Placement, ...], sizes: tuple[int, ...]) -> list[int]:
    """Return the mesh's axes that split a dim, in the order of splitting."""
    plain, strided = [], []
    for axis, placement in enumerate(placements):
        if isinstance(placement, _StridedShard):
            inner = [
                size
                for size, other in list(zip(sizes, placements, strict=True))[axis + 1 :]
                if not other.is_replicate() and other.dim == placement.dim  # type: ignore[attr-defined]
            ]
            assert placement.split_factor == prod(inner), f"{placements} on {sizes}: in an order of its own"
            strided.append(axis)
        elif isinstance(placement, Shard):
            plain.append(axis)
        else:
            assert isinstance(placement, Replicate), f"{placement} holds no values of its own"
    return plain + strided[::-1]


STATE = "state."
"""Prefix of the names of an optimizer's tensors; its settings have another prefix."""


class PlainTensors(Protocol):
    """Whole tensors of a checkpoint."""

    def weight(self, name: str) -> Tensor | None:
        """Return a parameter or buffer; None if the name is unknown."""

    def moments(self, name: str) -> dict[str, Tensor]:
        """Return the optimizer state of a parameter."""

    def loss_scale(self) -> Tensor:
        """Return the tensor of LossScale."""


def open_tensors(folder: Path) -> PlainTensors:
    """Return the tensors in an engine's folder.

    Raises:
        ConfigError: the folder was not written by an engine, or its files are not plain.
    """
    if is_zero(folder):
        return ZeroTensors(folder)
    if not (folder / native_files.FILE).is_file():
        raise ConfigError([f"{folder}: does not hold the state of an engine [SL-no-engine-state]"])
    return NativeTensors(folder)


def read_state(state: dict[str, Any], folder: Path) -> None:
    """Fill {"model", "optimizer", "loss_scale"} of a native engine from the folder of any engine; collective.

    Raises:
        ConfigError: a tensor is missing or has another shape.
    """
    if is_zero(folder):
        fill_state(state, ZeroTensors(folder))
    else:
        read_sharded(state, folder)


@torch.no_grad()
def fill_state(state: dict[str, Any], source: PlainTensors) -> None:
    """Fill the same from plain tensors, each rank its part; the optimizer's settings stay unchanged."""
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
                missing = f"the checkpoint has no {leaf} of {name}"
                raise ConfigError([f"{missing}: it is from another optimizer [SL-moment-missing]"])
            _put(state["optimizer"][f"{STATE}{name}.{leaf}"], moments[leaf], name)
    state["loss_scale"] = source.loss_scale()


def find_weight(source: PlainTensors, name: str) -> Tensor:
    """Return a required parameter or buffer.

    Raises:
        ConfigError: it is missing.
    """
    found = source.weight(name)
    if found is None:
        raise ConfigError([f"the checkpoint has no {name}: it is from another model [SL-weight-missing]"])
    return found


def _put(target: Tensor, whole: Tensor, name: str) -> None:
    if target.shape != whole.shape:
        there, here = tuple(whole.shape), tuple(target.shape)
        raise ConfigError([f"{name} is {there} in the checkpoint but {here} in this run [SL-weight-shape]"])
    if isinstance(target, DTensor):
        target.to_local().copy_(take_local(whole, target))
    else:
        target.copy_(whole)


# flat: an optimizer's entries are named after its parameters, for any number of ranks, stages and groups
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


@dataclass
class StatePart:
    """A module with its optimizer; an engine has one, or one per stage of its pipeline."""

    module: nn.Module
    optimizer: Any

    def stored_name(self, key: str) -> str:
        """Return the name in the checkpoint; keys of an optimizer contain a parameter's name."""
        return key


def collect(parts: Sequence[StatePart], loss_scale: LossScale) -> dict[str, Any]:
    """Return {"model", "optimizer", "loss_scale"} of this rank, by the names of the checkpoint; collective."""
    models: dict[str, Any] = {}
    optimizers: dict[str, Any] = {}
    for part in parts:
        model, optimizer = get_state_dict(part.module, part.optimizer, options=_FLAT)
        models |= {part.stored_name(key): value for key, value in model.items()}
        optimizers |= {part.stored_name(key): value for key, value in optimizer.items()}
    return {"model": models, "optimizer": optimizers, "loss_scale": loss_scale.state()}


def load(parts: Sequence[StatePart], loss_scale: LossScale, folder: Path) -> None:
    """Load a state that any number of ranks or another strategy has saved; collective.

    Of tied parameters only the first name is read, because not every strategy writes both. Optimizers without steps
    get their state first (torch runs a step with learning rate and gradients 0), because loading only fills existing
    state.
    """
    state = collect(parts, loss_scale)
    again = {name: first for part in parts for name, first in find_names_again(part.module).items()}
    for name in again:
        state["model"].pop(name, None)
    read_state(state, folder)
    for part in parts:
        model, optimizer = get_state_dict(part.module, part.optimizer, options=_FLAT)
        names = {key: again.get(key, part.stored_name(key)) for key in model}
        set_state_dict(
            part.module,
            part.optimizer,
            model_state_dict={key: state["model"][name] for key, name in names.items()},
            optim_state_dict={key: state["optimizer"][part.stored_name(key)] for key in optimizer},
            options=_FLAT,
        )
    loss_scale.load(state["loss_scale"])


def find_names_again(module: nn.Module) -> dict[str, str]:
    """Return the further names of tied parameters, each with the first name; as in the state, without DDP's prefix."""
    first: dict[nn.Parameter, str] = {}
    again = {}
    inner = module.module if isinstance(module, DistributedDataParallel) else module
    for name, parameter in inner.named_parameters(remove_duplicate=False):
        if first.setdefault(parameter, name) != name:
            again[name] = first[parameter]
    return again


def gather(module: nn.Module) -> dict[str, Tensor]:
    """Return the whole state under the names of the unwrapped model, fp32, on rank 0's CPU; collective."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = get_model_state_dict(module, options=options)
    if dist.get_rank() != 0:
        return {}
    copies = {
        name: tensor.detach().clone().cpu() for name, tensor in whole.items()
    }  # without the copies these would be the parameters themselves
    return {name: copy.float() if copy.is_floating_point() else copy for name, copy in copies.items()}
