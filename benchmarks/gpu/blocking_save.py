"""`torch.distributed.checkpoint.save` of so many GiB from the device, as a plain loop would call it."""

from __future__ import annotations

import shutil
import time
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from benchmarks.gpu.session import Session

PARTS, SAVES = 48, 2


def measure_saves(session: Session, gib: float) -> dict[str, Any]:
    """Milliseconds of each of two saves, one process."""
    numbers = int(gib * 2**30 / 4 / PARTS)
    state = {f"part{i}": torch.zeros(numbers, device=session.device) for i in range(PARTS)}
    folder, taken = session.work_folder / "blocking", []
    for i in range(SAVES):
        if session.is_cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        dcp.save(state, checkpoint_id=folder / str(i))
        taken.append((time.perf_counter() - began) * 1e3)
        shutil.rmtree(folder / str(i))
    return {"gib": gib, "save_ms": taken, "by": "torch.distributed.checkpoint.save, without fsync"}
