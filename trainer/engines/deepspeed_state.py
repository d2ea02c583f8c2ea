"""State of the DeepSpeed strategies: its own checkpoint, guarded, because it trusts the folder and says little.

A missing file ends in a bare AssertionError or in a silent start from scratch, another world size in a message without
advice, and the files are unpickled without any limit. So: everything is checked before DeepSpeed sees the folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.checkpoint.moved_state import open_tensors
from trainer.checkpoint.plain_files import refuse_code
from trainer.checkpoint.zero_files import TAG, is_zero, read_facts
from trainer.engines.deepspeed_place import place_tensors
from trainer.models.loss_scale import LossScale
from trainer.settings.config import ConfigError


def load(engine: Any, loss_scale: LossScale, folder: Path) -> None:
    """Reads what a snapshot wrote, with any stage and number of processes, or what another strategy did; collective.

    Raises:
        ConfigError: no checkpoint, or content that is not plain tensors.
    """
    found: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            found = [
                _is_readable_by_deepspeed(folder, dist.get_world_size(), engine.zero_optimization_stage())
            ]
        except ConfigError as failure:
            found = [failure.problems]
    dist.broadcast_object_list(found)
    if isinstance(found[0], list):
        raise ConfigError(found[0])
    if not found[0]:
        source = open_tensors(folder)
        place_tensors(engine, source)
        loss_scale.load(source.loss_scale())
        return
    path, client = engine.load_checkpoint(str(folder), tag=TAG)
    assert path is not None, f"DeepSpeed loaded nothing from {folder}"
    _forget_copies_in_node(engine.module)
    loss_scale.load(torch.tensor(client["loss_scale"], dtype=torch.float64))


def _forget_copies_in_node(module: nn.Module) -> None:
    """Of frozen parameters; hpz makes them anew at the next gather.

    DeepSpeed's load forgets those of trained ones alone (stage3.py, invalidate_secondary_tensor), so that a run would
    go on with the frozen weights that it started from.
    """
    for parameter in module.parameters():
        if not parameter.requires_grad and getattr(parameter, "ds_secondary_tensor", None) is not None:
            parameter.ds_secondary_tensor = None


def _is_any_in_flight(module: nn.Module) -> bool:
    """Whether a gather is under way: behind an evaluation those of a backward pass that never came may be.

    DeepSpeed does not let go of a parameter in flight. Its whole prologue is for that case alone: it takes apart what
    stays gathered, and a pass that recomputes selectively behind it gathers other parameters than its forward did.
    """
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

    return any(parameter.ds_status is ZeroParamStatus.INFLIGHT for parameter in module.parameters())


def _is_readable_by_deepspeed(folder: Path, world_size: int, stage: int) -> bool:
    """Rank 0: whether it was saved by an engine like this one; then its files are looked at first."""
    if not is_zero(folder):
        return False
    facts = read_facts(folder)
    if (facts["stage"], facts["world_size"]) != (stage, world_size):
        return False
    refuse_code(folder / TAG)
    return True


def gather(engine: Any) -> dict[str, Tensor]:
    """The whole state under the model's own names, fp32, on rank 0's CPU; collective."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param

    module, keeps, state = engine.module, dist.get_rank() == 0, {}
    names = set(module.state_dict(keep_vars=True))
    partitioned = engine.zero_optimization_partition_weights()
    in_flight = partitioned and _is_any_in_flight(module)
    if in_flight:
        engine.optimizer.checkpoint_event_prologue()
    for name, parameter in module.named_parameters(remove_duplicate=False):
        whole = None
        if parameter.requires_grad and parameter.dtype != torch.float32:
            whole = safe_get_full_fp32_param(parameter)  # the copy that the optimizer works on
        with deepspeed.zero.GatheredParameters([parameter], enabled=partitioned):
            if keeps and name in names:
                state[name] = (
                    (parameter if whole is None else whole).detach().to("cpu", torch.float32, copy=True)
                )
    if in_flight:
        engine.optimizer.checkpoint_event_epilogue()
    for name, buffer in module.named_buffers():
        if keeps and name in names:
            state[name] = buffer.detach().to("cpu", copy=True)
            if buffer.is_floating_point():
                state[name] = state[name].float()
    return state
