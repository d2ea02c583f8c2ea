"""Runs a cell: the real worker, killed once and started again, and where it is wanted the first steps in fp64.

In fp32 a network with batch norm does not tell a mistake from rounding: what two processes add up in another order
lies 1e-6 apart, and where that carries one value over the kink of a ReLU, a part of the gradient is there or not, which
no bound on rounding foresees (docs/decisions/numerics.md). In fp64 they are 1e-16 apart. What stays in fp32 is what a
strategy has so: FSDP reduces gradients, DeepSpeed holds the weights that it updates.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.image_models.cell import Cell
from tests.image_models.found import AMONG, EXACT_FILE, read_found
from tests.ranks import fork_ranks
from tests.trainer.runs import run_worker

EXACT_LIMIT_S = 600.0


def train_exactly(
    cell: Cell, folder: Path, plant: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> str:
    """Leaves {losses, norms} of the first steps in the run directory `folder`; what the ranks that failed said, or "".

    Args:
        plant: a mistake, for as long as a rank trains.
    """

    def rank() -> None:
        import torch.distributed as dist

        with plant():
            found = _train_in_fp64(cell)
        if dist.get_rank() == 0:
            (folder / EXACT_FILE).write_text(json.dumps(found))

    ranks = fork_ranks(
        rank, cell.world_size, env={"LOCAL_WORLD_SIZE": str(cell.per_node)}, timeout_s=EXACT_LIMIT_S,
        grace_s=60,
    )  # fmt: skip
    return "\n".join(each.output[-1500:] for each in ranks if each.exit_code)


def _train_in_fp64(cell: Cell) -> dict[str, list[float]]:
    import torch
    import torch.distributed as dist

    from stratlab_spec.schedule import learning_rate
    from tests.trainer.runs import run_of
    from trainer.data.batches import Share
    from trainer.distributed.world import Precision
    from trainer.measuring.phases import Phases
    from trainer.strategies import build_engine
    from trainer.tasks.image_task import ImageTask

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    config = cell.config()
    task = ImageTask(config, Share(dist.get_rank(), dist.get_world_size()), "cpu")
    task.start(0)
    model: Any = task.build_model(empty=False).double()
    predict = model.predict
    model.predict = lambda images: predict(images.double())
    engine = build_engine(run_of(config, Precision("fp32"), cell.per_node), model, Phases("cpu"))
    losses, norms = [], []
    for step in range(1, AMONG + 1):
        result = engine.train_step(task.next_batch(step), learning_rate(config, step, config.steps))
        loss = result.loss.clone()
        dist.all_reduce(loss)
        losses.append(float(loss))
        norms.append(float(result.grad_norm))
    engine.close()
    return {"losses": losses, "norms": norms}


LIMIT_S = 1800.0
PUBLISHED = "mobilenet_v3_large-5c1a4163.pth"
"""As torchvision calls the file; here with fresh weights, for no network is there."""


def run_cell(cell: Cell) -> dict[str, Any]:
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
            return "\n".join(rank.output[-1500:] for rank in ranks if rank.exit_code) or "it was not killed"
    return ""


def _be_worker() -> None:
    raise SystemExit(run_worker())


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
