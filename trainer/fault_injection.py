"""Faults on demand: the setting `fault` makes a fault happen when this rank fetches a batch, once in the run.

The only seam is the function that gives the loop its batches; without a fault of this rank it stays unchanged.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import NoReturn

import torch

from stratlab_spec.settings.faults import KINDS, Fault, read_faults
from trainer.checkpoint.folder import CheckpointFolder
from trainer.data.batches import Batch
from trainer.run import Run

FULL_BYTES = 4096
MOST_BYTES = 1 << 50

NextBatch = Callable[[int], Batch]
log = logging.getLogger("trainer")


def plant_faults(run: Run, attempt: int, next_batch: NextBatch) -> NextBatch:
    """Return `next_batch` with the faults of this rank in it; unchanged without faults."""
    faults = [fault for fault in read_faults(run.config.fault) if fault.rank == run.world.rank]
    for fault in faults:
        next_batch = _plant(run, attempt, fault, next_batch)
    return next_batch


def _plant(run: Run, attempt: int, fault: Fault, next_batch: NextBatch) -> NextBatch:
    def fetch(step: int) -> Batch:
        nonlocal next_batch
        if step == fault.step and _mark(run, attempt, fault):
            log.warning("planted fault %s of rank %d: %s", fault.kind, fault.rank, KINDS[fault.kind])
            if fault.kind != "slow":
                return APPLY[fault.kind](run, next_batch, step)
            next_batch = _slow(next_batch)
        return next_batch(step)

    return fetch


def _mark(run: Run, attempt: int, fault: Fault) -> bool:
    """Write down that it happens, durably, for it may end the process; False if it has happened already."""
    path = run.folder.faults / fault.name
    if path.exists() and not fault.every_attempt:
        return False
    path.parent.mkdir(exist_ok=True)
    with open(path, "a") as file:
        file.write(json.dumps({"t": time.time(), "attempt": attempt, **dataclasses.asdict(fault)}) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return True


def _slow(next_batch: NextBatch) -> NextBatch:
    """Make the following steps take twice as long."""
    left = math.nan

    def wait(step: int) -> Batch:
        nonlocal left
        if not math.isnan(left):
            time.sleep(time.monotonic() - left)
        batch = next_batch(step)
        left = time.monotonic()
        return batch

    return wait


def _kill(run: Run, next_batch: NextBatch, step: int) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still there")


def _hang(run: Run, next_batch: NextBatch, step: int) -> NoReturn:
    while True:
        time.sleep(3600)


def _nan(run: Run, next_batch: NextBatch, step: int) -> Batch:
    return dataclasses.replace(next_batch(step), global_labels=math.nan)  # type: ignore[arg-type]


def _oom(run: Run, next_batch: NextBatch, step: int) -> Batch:
    if run.world.device_type != "cuda":
        raise torch.OutOfMemoryError(
            "out of memory by run.config.fault; this device has no memory of its own"
        )
    torch.empty(MOST_BYTES, dtype=torch.uint8, device=run.world.device)
    return next_batch(step)


def _disk_full(run: Run, next_batch: NextBatch, step: int) -> Batch:
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return next_batch(step)


def _corrupt(run: Run, next_batch: NextBatch, step: int) -> Batch:
    checkpoints = CheckpointFolder(run.folder)
    for newest in checkpoints.committed()[-1:]:
        files = (path for path in (checkpoints.step(newest) / "engine").rglob("*") if path.is_file())
        with open(max(files, key=lambda path: path.stat().st_size), "r+b") as file:
            middle = file.seek(0, os.SEEK_END) // 2
            file.seek(middle)
            byte = file.read(1)[0]
            file.seek(middle)
            file.write(bytes([byte ^ 1]))
    return next_batch(step)


APPLY: dict[str, Callable[[Run, NextBatch, int], Batch]] = {
    "kill": _kill,
    "hang": _hang,
    "nan": _nan,
    "oom": _oom,
    "disk-full": _disk_full,
    "corrupt": _corrupt,
}
