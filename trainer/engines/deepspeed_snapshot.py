"""Snapshots of a DeepSpeed engine: it says what it would write and where, and this is copied instead of written.

So its collectives (it waits for all ranks between its files) are over before anybody touches the disk, and the files
are as before: each rank's own, with tensors, plain values and two of DeepSpeed's classes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.checkpoint.staging import Staging
from trainer.checkpoint.zero_files import BUFFERS, FACTS, TAG
from trainer.engine import Written
from trainer.engines.deepspeed_files import as_plain
from trainer.models.loss_scale import LossScale

NOWHERE = Path("/nowhere")
"""Where DeepSpeed believes that it writes."""


class DeepSpeedSnapshot:
    """One rank's files, by their names.

    Args:
        facts: on rank 0, what tells this checkpoint from others.
        copy_scripts: on rank 0, puts DeepSpeed's programs for such files into a folder.
    """

    def __init__(
        self,
        files: dict[str, Any],
        held_bytes: int,
        facts: dict[str, Any] | None,
        copy_scripts: Callable[[str], None] | None,
    ) -> None:
        self._files = files
        self._facts = facts
        self._copy_scripts = copy_scripts
        self.held_bytes = held_bytes

    def write(self, folder: Path) -> Written:
        for name, content in self._files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            torch.save(content, folder / name)
        return Written(sorted(self._files))

    def finish(self, folder: Path, parts: list[Any]) -> list[str]:
        """The facts, and DeepSpeed's programs."""
        (folder / FACTS).write_text(json.dumps(self._facts) + "\n")
        if self._copy_scripts:
            self._copy_scripts(str(folder))
        return [FACTS, *sorted(path.name for path in folder.glob("*.py"))]


def take_snapshot(staging: Staging, engine: Any, loss_scale: LossScale) -> DeepSpeedSnapshot:
    """A copy of what this rank would write; collective.

    universal_checkpoint_info is for DeepSpeed's own converter, should somebody want its universal format.
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
    return DeepSpeedSnapshot(copied, staging.held_bytes, facts, copy_scripts if facts else None)


@contextmanager
def _caught_writes(engine: Any) -> Iterator[dict[str, Any]]:
    """What DeepSpeed saves meanwhile, by its name below `NOWHERE`; nothing reaches the disk.

    It need not copy tensors that share storage: that is done here, once (0.19.8, `preserves_storage_sharing`).
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
            delattr(owner, name)  # the class's own again
