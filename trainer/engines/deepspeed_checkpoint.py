"""Save and load the state of the DeepSpeed strategies in DeepSpeed's own checkpoint format, with checks.

saving    `take_snapshot` lets DeepSpeed save, but captures the files in memory instead of writing them. So its
          collectives end before any file is written. The files hold tensors, plain values and two of its classes.
loading   `load` checks everything first. Without checks, a missing file ends in a bare AssertionError or a silent start
          from scratch. Another world size gives a message without advice, and files are unpickled without limits.
          DeepSpeed only reads files of its own stage and world size. Its universal format lacks SGD and changes of
          stage. Here each rank takes its pieces out of whole tensors, one parameter at a time, and stores them in
          DeepSpeed's engine (0.19.8).
"""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from stratlab_spec.settings.config import ConfigError
from trainer.checkpoint.deepspeed_files import BUFFERS, FACTS, TAG, is_zero, read_facts, refuse_code
from trainer.checkpoint.state import PlainTensors, Staging, find_weight, open_tensors
from trainer.engine import Written
from trainer.models.mixed_precision import LossScale

NOWHERE = Path("/nowhere")
"""The folder that DeepSpeed believes it writes to."""


@dataclass
class DeepSpeedSnapshot:
    """One rank's files, by name."""

    files: dict[str, Any]
    held_bytes: int
    facts: dict[str, Any] | None
    """On rank 0, the facts that identify this checkpoint."""
    copy_scripts: Callable[[str], None]
    """Copies DeepSpeed's conversion scripts into a folder."""

    def write(self, folder: Path) -> Written:
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            torch.save(content, folder / name)
        return Written(sorted(self.files))

    def finish(self, folder: Path, parts: list[Any]) -> list[str]:
        """Return the facts and copy DeepSpeed's scripts into the folder."""
        (folder / FACTS).write_text(json.dumps(self.facts) + "\n")
        self.copy_scripts(str(folder))
        return [FACTS, *sorted(path.name for path in folder.glob("*.py"))]


def take_snapshot(staging: Staging, engine: Any, loss_scale: LossScale) -> DeepSpeedSnapshot:
    """Copy everything that this rank would write; collective.

    DeepSpeed's converter to its universal format needs universal_checkpoint_info.
    """
    client = {
        "universal_checkpoint_info": {"universal_checkpoint_version": 0.2},
        "loss_scale": loss_scale.state().tolist(),
    }
    facts, copy_scripts = None, engine._copy_recovery_script
    with _caught_writes(engine) as files:
        engine.save_checkpoint(str(NOWHERE), tag=TAG, save_latest=False, client_state=client)
    if dist.get_rank() == 0:
        facts = {"world_size": dist.get_world_size(), "stage": engine.zero_optimization_stage()}
        files[BUFFERS] = dict(engine.module.named_buffers())
    tensors: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    as_plain(files, tensor=collect)
    copies = iter(staging.copy(tensors))
    copied = as_plain(files, tensor=lambda _: next(copies))
    return DeepSpeedSnapshot(copied, staging.held_bytes, facts, copy_scripts)


@contextmanager
def _caught_writes(engine: Any) -> Iterator[dict[str, Any]]:
    """Capture DeepSpeed's writes by their name below `NOWHERE`; the disk stays unchanged.

    DeepSpeed need not copy tensors that share storage: the caller copies once (0.19.8, `preserves_storage_sharing`).
    """
    writer, files = engine.checkpoint_engine, dict[str, Any]()

    def keep(state_dict: Any, path: str) -> None:
        files[str(Path(path).relative_to(NOWHERE))] = state_dict

    replaced: dict[tuple[Any, str], Callable[..., Any]] = {
        (writer, "save"): keep,
        (writer, "makedirs"): lambda *a, **k: None,
        (writer, "preserves_storage_sharing"): lambda: False,
        (engine, "_copy_recovery_script"): lambda *a: None,
    }
    try:
        for (owner, name), instead in replaced.items():
            setattr(owner, name, instead)
        yield files
    finally:
        for owner, name in replaced:
            delattr(owner, name)  # restores the class's own


LEAVES = (type(None), bool, int, float, complex, str, bytes, set, torch.dtype, torch.device, torch.Size)


def as_plain(value: Any, where: str = "state", tensor: Callable[[Tensor], Tensor] = lambda held: held) -> Any:
    """Return the state with plain values for enums and NumPy scalars, under every version of Python.

    DeepSpeed's state contains its ZeroStageEnum. Python 3.11.2 pickles a member of an enum as a call of `getattr`,
    3.11.7 and 3.12 as a call of its class, and `weights_only` rejects the first. Older checkpoints may have either form
    (trainer/checkpoint/deepspeed_files.py).

    Args:
        tensor: converts each tensor, in an order that is the same for equal states; by default tensors are shared.

    Raises:
        AssertionError: `refuse_code` would reject a value on resume; the message has its path.
    """
    kind = type(value)
    if isinstance(value, Enum):
        return as_plain(value.value, where, tensor)
    if isinstance(value, np.generic):
        return value.item()
    if kind in (dict, OrderedDict):
        items = (
            (as_plain(k, f"{where}, a key"), as_plain(v, f"{where}[{k!r}]", tensor)) for k, v in value.items()
        )
        plain = kind(items)
        if attributes := getattr(value, "__dict__", None):  # versions of a module's state_dict
            vars(plain).update(as_plain(attributes, "attributes"))
        return plain
    if kind in (list, tuple):
        return kind(as_plain(held, f"{where}[{i}]", tensor) for i, held in enumerate(value))
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.utils.tensor_fragment import fragment_address

    if kind in (LossScaler, fragment_address):  # DeepSpeed needs the original values back
        as_plain(vars(value), f"{where} ({kind.__name__})")
        return copy.copy(value)  # later steps change its numbers
    if kind in (Tensor, nn.Parameter):
        return tensor(value)
    readable = kind in LEAVES
    assert readable, f"{where} is a {kind.__module__}.{kind.__name__}: a checkpoint cannot contain it"
    return value


STEP = "step"
"""Name of the only optimizer state that is a single number."""


class Piece(NamedTuple):
    """One parameter's piece on this rank."""

    name: str
    whole: torch.Size
    start: int
    """Start in the flattened parameter."""
    length: int
    place: int
    """Start in the flat tensor of its group."""


@torch.no_grad()
def place_tensors(engine: Any, source: PlainTensors) -> None:
    """Place parameters, buffers and moments, in place; collective.

    Raises:
        ConfigError: the source lacks a tensor, or has it in another shape.
    """
    module, optimizer = engine.module, engine.optimizer
    partitions = engine.zero_optimization_partition_weights()
    if partitions:
        optimizer.checkpoint_event_prologue()
    _place_untrained(module, source, partitions)
    names = {parameter: name for name, parameter in module.named_parameters()}
    if partitions:
        groups, flats, find = optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat, _find_sharded
    else:
        groups, flats, find = optimizer.bit16_groups, optimizer.single_partition_of_fp32_groups, _find_in_line
    for parameters, flat in zip(groups, flats, strict=True):
        _place_group(optimizer, find(optimizer, parameters, names), flat, source)
    if partitions:
        _refresh_shards(optimizer)
        optimizer.checkpoint_event_epilogue()
    else:
        optimizer.update_lp_params()


def _place_untrained(module: nn.Module, source: PlainTensors, partitions: bool) -> None:
    """Place buffers and frozen parameters."""
    import deepspeed

    kept = set(module.state_dict(keep_vars=True))
    for name, buffer in module.named_buffers():
        value = source.weight(name)
        if value is not None:
            buffer.copy_(value)
        elif name in kept:
            find_weight(source, name)
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            value = find_weight(source, name)
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0, enabled=partitions):
                if parameter.numel():  # for partitioned buffers only rank 0's count
                    parameter.copy_(value)


def _find_in_line(optimizer: Any, parameters: Any, names: dict[Any, str]) -> Iterator[Piece]:
    """Yield this rank's pieces in stages 1 and 2: it holds a slice of each group's concatenated parameters."""
    for parameter in parameters:
        if (mapping := parameter._hp_mapping) is not None:
            there, here = mapping.lp_fragment_address, mapping.hp_fragment_address
            yield Piece(names[parameter], parameter.shape, there.start, there.numel, here.start)


def _find_sharded(optimizer: Any, parameters: Any, names: dict[Any, str]) -> Iterator[Piece]:
    """Yield this rank's pieces in stage 3: an equal part of every parameter, the last ones padded."""
    place = 0
    for parameter in parameters:
        part = parameter.ds_tensor.ds_numel
        start = min(part * optimizer._get_param_partition_rank(parameter), parameter.ds_numel)
        yield Piece(names[parameter], parameter.ds_shape, start, min(part, parameter.ds_numel - start), place)
        place += part


def _place_group(optimizer: Any, pieces: Iterator[Piece], flat: Tensor, source: PlainTensors) -> None:
    state: dict[str, Tensor] = {}
    for piece in pieces:
        _copy(flat, find_weight(source, piece.name), piece)
        for key, value in source.moments(piece.name).items():
            if key == STEP:
                state[key] = value.to(flat.device, torch.float32, copy=True)
            else:
                _copy(state.setdefault(key, torch.zeros_like(flat)), value, piece)
    optimizer.optimizer.state[flat] = state


def _copy(flat: Tensor, whole: Tensor, piece: Piece) -> None:
    if whole.shape != piece.whole:
        there, here = tuple(whole.shape), tuple(piece.whole)
        problem = f"{piece.name} is {there} in the checkpoint, but {here} here [SL-checkpoint-shape-zero]"
        raise ConfigError([problem])
    part = whole.reshape(-1)[piece.start : piece.start + piece.length]
    flat.data[piece.place : piece.place + piece.length].copy_(part)


def _refresh_shards(optimizer: Any) -> None:
    """Update stage 3's compute weights from its fp32 copies, as DeepSpeed does after loading its own files."""
    for group, flat in enumerate(optimizer.fp32_partitioned_groups_flat):
        held = optimizer.fp16_partitioned_groups_flat[group]
        held.data.copy_(flat.data)
        shards = optimizer.fp16_partitioned_groups[group]
        for shard, view in zip(shards, optimizer.unflatten(held, shards), strict=True):
            shard.data = view.data


def load(engine: Any, loss_scale: LossScale, folder: Path) -> None:
    """Load a snapshot from any stage and number of processes, or another strategy's checkpoint; collective.

    Raises:
        ConfigError: the checkpoint is missing, or contains more than plain tensors.
    """
    looked: list[Any] = [[], False]  # problems, and whether an engine like this one saved it
    if dist.get_rank() == 0 and is_zero(folder):
        try:
            facts, own = read_facts(folder), (engine.zero_optimization_stage(), dist.get_world_size())
            looked[1] = (facts["stage"], facts["world_size"]) == own
            if looked[1]:
                refuse_code(folder / TAG)
        except ConfigError as failure:
            looked[0] = failure.problems
    dist.broadcast_object_list(looked)
    problems, is_own = looked
    if problems:
        raise ConfigError(problems)
    if not is_own:
        source = open_tensors(folder)
        place_tensors(engine, source)
        loss_scale.load(source.loss_scale())
        return
    path, client = engine.load_checkpoint(str(folder), tag=TAG)
    assert path is not None, f"DeepSpeed loaded nothing from {folder}"
    for parameter in engine.module.parameters():
        # DeepSpeed's load only refreshes hpz's copies of trained parameters (stage3.py,
        # invalidate_secondary_tensor): the run would continue with the frozen weights that it started from
        if not parameter.requires_grad and getattr(parameter, "ds_secondary_tensor", None) is not None:
            parameter.ds_secondary_tensor = None
    loss_scale.load(torch.tensor(client["loss_scale"], dtype=torch.float64))


def gather(engine: Any) -> dict[str, Tensor]:
    """Gather the whole state under the model's own names, fp32, on rank 0's CPU; collective.

    After an evaluation, gathers for a backward pass that never ran may be pending. DeepSpeed does not release a
    parameter in flight. Its whole prologue runs only for that case, because it partitions gathered parameters again.
    """
    import deepspeed
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
    from deepspeed.utils import safe_get_full_fp32_param

    module, keeps, state = engine.module, dist.get_rank() == 0, {}
    names = set(module.state_dict(keep_vars=True))
    partitioned = engine.zero_optimization_partition_weights()
    in_flight = partitioned and any(p.ds_status is ZeroParamStatus.INFLIGHT for p in module.parameters())
    if in_flight:
        engine.optimizer.checkpoint_event_prologue()
    for name, parameter in module.named_parameters(remove_duplicate=False):
        whole = None
        if parameter.requires_grad and parameter.dtype != torch.float32:
            whole = safe_get_full_fp32_param(parameter)  # the optimizer's working copy
        with deepspeed.zero.GatheredParameters([parameter], enabled=partitioned):
            if keeps and name in names:
                held = parameter if whole is None else whole
                state[name] = held.detach().to("cpu", torch.float32, copy=True)
    if in_flight:
        engine.optimizer.checkpoint_event_epilogue()
    for name, buffer in module.named_buffers():
        if keeps and name in names:
            kept = buffer.detach().to("cpu", copy=True)
            state[name] = kept.float() if kept.is_floating_point() else kept
    return state
