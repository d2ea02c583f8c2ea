"""What a rank finds out without its peers and without a device: versions, shared memory, the results volume."""

from __future__ import annotations

import os
import platform
import time
import uuid
from pathlib import Path
from typing import Any

import torch

from trainer.settings.installation import read_version

GIB, MIB = 2**30, 2**20
SHM = Path("/dev/shm")
SHM_SAMPLE = 4 * MIB
VOLUME_SAMPLE = 32 * MIB
PIECE = MIB


def describe_versions() -> dict[str, str]:
    """Of all that must be equal on all ranks; "" where there is none."""
    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else ()
    return {
        "trainer": read_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "nccl": ".".join(map(str, nccl)),
    }


def describe_shared_memory() -> dict[str, Any]:
    """GiB of /dev/shm in all and free; a file of SHM_SAMPLE bytes is really written there.

    Raises:
        OSError: it cannot be.
    """
    state = os.statvfs(SHM)
    found: dict[str, Any] = {
        "gib": state.f_blocks * state.f_frsize / GIB,
        "free_gib": state.f_bavail * state.f_frsize / GIB,
    }
    sample = SHM / f"stratlab-{uuid.uuid4().hex}"
    try:
        with open(sample, "wb") as file:
            file.write(bytes(SHM_SAMPLE))
    except OSError as failure:
        found["error"] = str(failure.strerror)
    finally:
        sample.unlink(missing_ok=True)
    return found


def describe_volume(folder: Path) -> dict[str, Any]:
    """Free GiB, MB/s of VOLUME_SAMPLE bytes until they are on the disk, and how far its clock is before this one's.

    Args:
        folder: on the results volume; made if it is not there.
    """
    found: dict[str, Any] = {}
    sample = folder / f".sample-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        state = os.statvfs(folder)
        found = {
            "free_gib": state.f_bavail * state.f_frsize / GIB,
            "gib": state.f_blocks * state.f_frsize / GIB,
        }
        before = time.time()
        with open(sample, "wb") as file:
            made = time.time()
            found["clock_s"] = os.fstat(file.fileno()).st_mtime - (before + made) / 2
            found["clock_within_s"] = (made - before) / 2
            piece, began = os.urandom(PIECE), time.monotonic()
            for _ in range(VOLUME_SAMPLE // PIECE):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            found["mb_per_s"] = VOLUME_SAMPLE / 1e6 / (time.monotonic() - began)
    except OSError as failure:
        found["error"] = str(failure.strerror)
    finally:
        sample.unlink(missing_ok=True)
    return found
