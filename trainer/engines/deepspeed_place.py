"""Plain tensors put where DeepSpeed's engine keeps its own (0.19.8): what another strategy or world size has saved.

DeepSpeed reads the files of its own stage and world size; for any other there is its universal format, written by a
converter beside the files, without SGD and without a way from one stage to another. Here each rank takes its pieces out
of whole tensors, one parameter at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainer.checkpoint.moved_state import PlainTensors, find_weight
from trainer.settings.config import ConfigError

STEP = "step"
"""Of the moments the one that is a single number."""


class Piece(NamedTuple):
    """Of a parameter, on this rank."""

    name: str
    whole: torch.Size
    start: int
    """In the flattened parameter."""
    length: int
    place: int
    """In the flat tensor of its group."""


@torch.no_grad()
def place_tensors(engine: Any, source: PlainTensors) -> None:
    """Parameters, buffers and moments, in place; collective.

    Raises:
        ConfigError: the source lacks something, or has it in another shape.
    """
    module, optimizer = engine.module, engine.optimizer
    partitions = engine.zero_optimization_partition_weights()
    if partitions:
        optimizer.checkpoint_event_prologue()
    _place_untrained(module, source, partitions)
    names = {parameter: name for name, parameter in module.named_parameters()}
    groups = optimizer.fp16_groups if partitions else optimizer.bit16_groups
    flats = (
        optimizer.fp32_partitioned_groups_flat if partitions else optimizer.single_partition_of_fp32_groups
    )
    find = _find_sharded if partitions else _find_in_line
    for parameters, flat in zip(groups, flats, strict=True):
        _place_group(optimizer, list(find(optimizer, parameters, names)), flat, source)
    if partitions:
        _refresh_shards(optimizer)
        optimizer.checkpoint_event_epilogue()
    else:
        optimizer.update_lp_params()


def _place_untrained(module: nn.Module, source: PlainTensors, partitions: bool) -> None:
    """Buffers, and what is frozen."""
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
                if parameter.numel():  # of partitioned ones only rank 0's counts
                    parameter.copy_(value)


def _find_in_line(optimizer: Any, parameters: Any, names: dict[Any, str]) -> Iterator[Piece]:
    """Stages 1 and 2: the parameters of a group behind each other, of which this rank has a piece."""
    for parameter in parameters:
        if (mapping := parameter._hp_mapping) is not None:
            there, here = mapping.lp_fragment_address, mapping.hp_fragment_address
            yield Piece(names[parameter], parameter.shape, there.start, there.numel, here.start)


def _find_sharded(optimizer: Any, parameters: Any, names: dict[Any, str]) -> Iterator[Piece]:
    """Stage 3: of every parameter an equal part, the last ones padded."""
    place = 0
    for parameter in parameters:
        part = parameter.ds_tensor.ds_numel
        start = min(part * optimizer._get_param_partition_rank(parameter), parameter.ds_numel)
        yield Piece(names[parameter], parameter.ds_shape, start, min(part, parameter.ds_numel - start), place)
        place += part


def _place_group(optimizer: Any, pieces: list[Piece], flat: Tensor, source: PlainTensors) -> None:
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
        shapes = (
            f"{tuple(whole.shape)} in the checkpoint and {tuple(piece.whole)} here [SL-checkpoint-shape-zero]"
        )
        raise ConfigError([f"{piece.name} is {shapes}"])
    part = whole.reshape(-1)[piece.start : piece.start + piece.length]
    flat.data[piece.place : piece.place + piece.length].copy_(part)


def _refresh_shards(optimizer: Any) -> None:
    """What stage 3 computes with, from its fp32 copies; as DeepSpeed does it behind its own files."""
    for group, flat in enumerate(optimizer.fp32_partitioned_groups_flat):
        held = optimizer.fp16_partitioned_groups_flat[group]
        held.data.copy_(flat.data)
        shards = optimizer.fp16_partitioned_groups[group]
        for shard, view in zip(shards, optimizer.unflatten(held, shards), strict=True):
            shard.data = view.data
