"""Runs a cell: the real worker, killed once and started again, and where it is wanted the first steps in fp64."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.image_models.cell import Cell
from tests.image_models.exact import train_exactly
from tests.image_models.found import read_found
from tests.ranks import fork_ranks

LIMIT_S = 1800.0
PUBLISHED = "mobilenet_v3_large-5c1a4163.pth"
"""As torchvision calls the file; here with fresh weights, for no network is there."""


def run_cell(cell: Cell) -> dict[str, Any]:
    """{found, seconds}, or {failure, seconds}."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="image-models-") as folder:
        results = Path(folder)
        run = results / cell.model / cell.strategy
        failure = _train(cell, results) or (train_exactly(cell, run) if cell.exact else "")
        row = {"failure": failure} if failure else {"found": asdict(read_found(run))}
    return row | {"seconds": round(time.perf_counter() - began, 1)}


def _train(cell: Cell, results: Path) -> str:
    """By the worker; what its ranks said where they did not end as they must, or ""."""
    variables = cell.variables(results) | _published(cell, results)
    fault = {"TRAINER_ALLOW_FAULTS": "true", "TRAINER_FAULT": f"kill@{cell.killed_at}:{cell.world_size - 1}"}
    for kills in (True, False):
        ranks = fork_ranks(_be_worker, cell.world_size, env=variables | fault, timeout_s=LIMIT_S, grace_s=60)
        if any(rank.exit_code for rank in ranks) != kills:
            said = "\n".join(rank.output[-1500:] for rank in ranks if rank.exit_code)
            return said or "it was not killed"
    return ""


def _be_worker() -> None:
    from trainer import worker

    raise SystemExit(worker.main())


def _published(cell: Cell, folder: Path) -> dict[str, str]:
    """Where a fine-tuned network finds its file, which has torchvision's format and 1000 classes."""
    if not cell.model.endswith("_finetuned"):
        return {}
    checkpoints = folder / "torch" / "hub" / "checkpoints"
    checkpoints.mkdir(parents=True)
    shutil.copyfile(_write_weights(), checkpoints / PUBLISHED)
    return {"TORCH_HOME": str(folder / "torch")}


def _write_weights() -> Path:
    """By a process of its own: this one forks none, but shall not hold torch either."""
    path = Path(tempfile.gettempdir()) / f"stratlab-{os.getuid()}-{PUBLISHED}"
    code = (
        "import torch, torchvision, sys; torch.manual_seed(4); "
        "torch.save(torchvision.models.mobilenet_v3_large().state_dict(), sys.argv[1])"
    )
    if not path.exists():
        new = path.with_suffix(".new")
        subprocess.run([sys.executable, "-c", code, str(new)], check=True)
        new.replace(path)
    return path
