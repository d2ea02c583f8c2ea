"""State of the DeepSpeed strategies: its own checkpoint, guarded, because it trusts the folder and says little.

A missing file ends in a bare AssertionError or in a silent start from scratch, another world size in a message without
advice, and the files are unpickled without any limit. So: everything is checked before DeepSpeed sees the folder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.engines.deepspeed_files import refuse_code
from trainer.engines.deepspeed_snapshot import BUFFERS, FACTS, TAG
from trainer.failures import StorageFull, is_storage_full
from trainer.settings.config import ConfigError
from trainer.settings.precision import LossScale

UNIVERSAL = "universal"


def load(engine: Any, loss_scale: LossScale, folder: Path) -> None:
    """Reads what a snapshot wrote; from another world size through DeepSpeed's universal format; collective.

    Raises:
        ConfigError: no checkpoint, another stage, content that is not plain tensors, or a failed conversion.
        StorageFull: there was no space for the conversion.
    """
    found: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            found = [_prepare(folder, dist.get_world_size(), engine.zero_optimization_stage())]
        except ConfigError as failure:
            found = [failure.problems]
        except StorageFull as failure:
            found = [{"full": str(failure)}]
    dist.broadcast_object_list(found)
    if isinstance(found[0], list):
        raise ConfigError(found[0])
    if isinstance(found[0], dict):
        raise StorageFull(found[0]["full"])
    universal = found[0] == UNIVERSAL
    engine._config.load_universal_checkpoint = universal  # read at every load; initialize() does not need it
    try:
        path, client = engine.load_checkpoint(str(folder), tag=found[0])
    finally:
        engine._config.load_universal_checkpoint = False
    assert path is not None, f"DeepSpeed loaded nothing from {folder}"
    if universal:
        _load_buffers(engine, folder)
    loss_scale.load(torch.tensor(client["loss_scale"], dtype=torch.float64))


def _load_buffers(engine: Any, folder: Path) -> None:
    """The universal format has no buffers, and DeepSpeed leaves those of the fresh model: rank 0's of then."""
    saved = torch.load(folder / BUFFERS, weights_only=True, map_location="cpu")
    for name, buffer in engine.module.named_buffers():
        buffer.copy_(saved[name])


def _prepare(folder: Path, world_size: int, stage: int) -> str:
    """Rank 0: checks everything and gives the tag to load."""
    if not (folder / FACTS).is_file() or not (folder / TAG).is_dir():
        raise ConfigError([f"{folder}: not a DeepSpeed checkpoint, {FACTS} or {TAG}/ is missing"])
    facts = json.loads((folder / FACTS).read_text())
    if facts["stage"] != stage:
        raise ConfigError(
            [
                f"{folder}: saved by ZeRO stage {facts['stage']}, this run is stage {stage}; "
                "continue with the same strategy"
            ]
        )
    refuse_code(folder / TAG)
    if facts["world_size"] == world_size:
        return TAG
    if not (folder / UNIVERSAL).is_dir():
        convert_to_universal(folder)
    refuse_code(folder / UNIVERSAL)
    return UNIVERSAL


def conversion_command(folder: Path) -> list[str]:
    """The command that makes a checkpoint loadable with any number of processes."""
    return [
        *(sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"),
        *("--input_folder", str(folder / TAG), "--output_folder", str(folder / UNIVERSAL)),
        *("--num_extract_workers", "1", "--num_merge_workers", "1", "--inject_missing_state"),
    ]


def convert_to_universal(folder: Path) -> None:
    """Writes `folder`/universal from `folder`/deepspeed in a process of its own; 6 to 16 s for a small model.

    Written aside and renamed: the next start trusts what has that name.

    Raises:
        ConfigError: with the command to try by hand, if it fails.
    """
    command, unfinished = conversion_command(folder), folder / f".{UNIVERSAL}.tmp"
    shutil.rmtree(unfinished, ignore_errors=True)
    aside = [str(unfinished) if part == str(folder / UNIVERSAL) else part for part in command]
    done = subprocess.run(aside, capture_output=True, text=True)
    if done.returncode == 0 and not (folder / UNIVERSAL).exists():
        unfinished.rename(folder / UNIVERSAL)
    else:
        said = RuntimeError(done.stderr.strip()[-2000:])
        if is_storage_full(said):
            raise StorageFull(
                f"{folder}: saved by another number of processes, and converting it needs space"
            )
        raise ConfigError(
            [
                f"{folder}: saved by another number of processes, and converting it failed: "
                f"{done.stderr.strip().splitlines()[-1:]}; see what `{' '.join(command)}` says, "
                "or continue with as many processes as before"
            ]
        )


def gather(engine: Any) -> dict[str, Tensor]:
    """The whole state under the model's own names, fp32, on rank 0's CPU; collective."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param

    module, keeps, state = engine.module, dist.get_rank() == 0, {}
    names = set(module.state_dict(keep_vars=True))
    partitioned = engine.zero_optimization_partition_weights()
    for name, parameter in module.named_parameters(remove_duplicate=False):
        whole = None
        if parameter.requires_grad and parameter.dtype != torch.float32:
            whole = safe_get_full_fp32_param(parameter)  # the copy that the optimizer works on
        with deepspeed.zero.GatheredParameters([parameter], enabled=partitioned):
            if keeps and name in names:
                state[name] = (
                    (parameter if whole is None else whole).detach().to("cpu", torch.float32, copy=True)
                )
    for name, buffer in module.named_buffers():
        if keeps and name in names:
            state[name] = buffer.detach().to("cpu", copy=True)
            if buffer.is_floating_point():
                state[name] = state[name].float()
    return state
