"""The random numbers of one rank, saved and restored: Python, NumPy, torch on the CPU and on the device.

Tensors and plain numbers only, so that the file is read with `weights_only=True`: reading it runs no code.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.checkpoint.plain_files import read_plain


def random_state(device_type: str) -> dict[str, Any]:
    """The state of every generator of this process."""
    version, numbers, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()  # type: ignore[misc]
    state = {
        "python": {"version": version, "numbers": torch.tensor(numbers), "gauss": gauss},
        "numpy": {
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": torch.get_rng_state(),
    }
    if device_type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Puts every generator back; the device's only where both have one."""
    python, numbers = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["numbers"].tolist()), python["gauss"]))
    keys = numbers["keys"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, numbers["position"], numbers["has_gauss"], numbers["cached"]))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def rank_file(checkpoint: Path, rank: int) -> Path:
    return checkpoint / "ranks" / f"rank_{rank:05d}.pt"


def save_random_state(checkpoint: Path, rank: int, state: dict[str, Any]) -> None:
    """Writes what `random_state` gave."""
    path = rank_file(checkpoint, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)


def load_random_state(checkpoint: Path, rank: int, seed: int, step: int) -> None:
    """This rank's numbers; a rank that the run did not have before gets new ones, by seed, step and rank.

    Raises:
        ConfigError: the file holds anything else.
    """
    path = rank_file(checkpoint, rank)
    if path.is_file():
        set_random_state(read_plain(path))
        return
    fresh = int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])
    random.seed(fresh)
    np.random.seed(fresh)
    torch.manual_seed(fresh)
