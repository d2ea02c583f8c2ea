"""One step of a checkpoint on every rank: either all of them have done it, or all know that the volume is full."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trainer.failures import StorageFull, is_storage_full

SLOW_VOLUME_S = 3600
NAME = "disk"
"""Of the group: its axis, where traffic is told apart."""


def open_disk_group(timeout_s: int) -> Any:
    """The group in which ranks talk about files: on the hosts, so that none waits for a disk in a device's collective.

    Used at the start by the thread that trains, afterwards by the one that writes. Its time-out is at least an hour:
    volumes are slow, and a peer that is lost is noticed by its broken connection.
    """
    timeout = timedelta(seconds=max(timeout_s, SLOW_VOLUME_S))
    return dist.new_group(backend="gloo", timeout=timeout, group_desc=NAME)


def run_together(action: Callable[[], Any], folder: Path, group: Any = None) -> list[Any]:
    """What `action` returned on every rank, in their order; also keeps them together, like a barrier.

    Args:
        folder: where it writes.
        group: of all ranks.

    Raises:
        StorageFull: on every rank, if the volume is full for one of them.
    """
    done, full = None, ""
    try:
        done = action()
    except Exception as failure:
        if not is_storage_full(failure):
            raise
        full = f"rank {dist.get_rank()}: {describe_full(failure, folder)}"
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, (done, full), group=group)
    if sentences := [sentence for _, sentence in answers if sentence]:
        raise StorageFull(sentences[0])
    return [answer for answer, _ in answers]


def describe_full(failure: Exception, folder: Path) -> str:
    """The failure's own last line, and how much room there is."""
    lines = str(failure).strip().splitlines() or [type(failure).__name__]
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**20
    return f"{lines[-1][:300]} ({free:.0f} MiB free in {folder})"
