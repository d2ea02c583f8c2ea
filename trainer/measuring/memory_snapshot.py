"""Every allocation of the recorded steps, with the line of Python that asked for it: a file for pytorch.org/memory_viz.

torch's CUDA allocator keeps the history on the host, so that nothing of it counts for a peak.
"""

from __future__ import annotations

import logging
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

MOST_EVENTS = 300_000
"""Of a rank; the newest ones stay. Some 25,000 belong to a micro-batch of 36 decoder blocks."""

log = logging.getLogger("trainer")


def start_history() -> None:
    """From now on the allocator remembers what it gives and takes back."""
    torch.cuda.memory._record_memory_history(
        "all", context="alloc", stacks="python", max_entries=MOST_EVENTS, clear_history=True
    )


def write_snapshot(path: Path) -> dict[str, Any]:
    """Writes the history since `start_history`, and ends it; whatever goes wrong costs the file, and no step.

    Returns:
        What the manifest of the traces says of it: file, bytes, events, and whether older ones are missing; or the
        reason why there is none.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        snapshot = torch.cuda.memory._snapshot()
        path.parent.mkdir(exist_ok=True)
        with open(temporary, "wb") as file:
            pickle.dump(snapshot, file)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as failure:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        log.warning("the memory snapshot %s is dropped, training goes on: %s", path.name, failure)
        return {"reason": str(failure)}
    finally:
        torch.cuda.memory._record_memory_history(None)  # forgets it: not before it is written
    events = max(map(len, snapshot["device_traces"]), default=0)
    return {
        "file": f"{path.parent.name}/{path.name}",
        "bytes": path.stat().st_size,
        "events": events,
        "cut": events >= MOST_EVENTS,
    }
