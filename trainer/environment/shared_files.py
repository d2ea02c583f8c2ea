"""Whether each rank reads on the results volume what the others wrote there; collective over the default group."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

PLENTY_S = 65.0
"""A network file system may show a new file late: NFS keeps what it knows of a folder for up to 60 s."""
POLL_S = 0.2


def exchange_files(folder: Path) -> dict[str, Any]:
    """`unseen`: ranks whose file this one did not read within PLENTY_S; `after_s`: when it had read the last one;
    `unwritten`: why its own is not there.

    Args:
        folder: of this check alone, and the same for all ranks; gone when this returns.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    error = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank{rank}").write_text(f"{folder.name} {rank}")
    except OSError as failure:
        error = str(failure.strerror)
    errors: list[str] = [""] * size
    dist.all_gather_object(errors, error)  # all that can be written has been written
    waited_for = [other for other in range(size) if not errors[other]]
    began = time.monotonic()
    while unseen := [other for other in waited_for if not _is_there(folder, other)]:
        if time.monotonic() - began > PLENTY_S:
            break
        time.sleep(POLL_S)
    found = {"unseen": unseen, "after_s": time.monotonic() - began, "unwritten": error}
    dist.all_gather_object(errors, "")  # nobody reads any more
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _is_there(folder: Path, rank: int) -> bool:
    with suppress(OSError):
        os.listdir(folder)
        return (folder / f"rank{rank}").read_text() == f"{folder.name} {rank}"
    return False
