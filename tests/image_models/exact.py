"""The first steps of a cell in fp64, by its strategy's own engine: they tell a mistake from rounding.

In fp32 a network with batch norm does not: what two processes add up in another order lies 1e-6 apart, and where that
carries one value over the kink of a ReLU, a part of the gradient is there or not, which no bound on rounding foresees
(docs/strategies.md). In fp64 they are 1e-16 apart. What stays in fp32 is what a strategy has so: FSDP reduces
gradients, DeepSpeed holds the weights that it updates.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tests.image_models.cell import Cell
from tests.image_models.found import AMONG, EXACT_FILE
from tests.ranks import fork_ranks

LIMIT_S = 600.0


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
            found = _train(cell)
        if dist.get_rank() == 0:
            (folder / EXACT_FILE).write_text(json.dumps(found))

    ranks = fork_ranks(
        rank, cell.world_size, env={"LOCAL_WORLD_SIZE": str(cell.per_node)}, timeout_s=LIMIT_S, grace_s=60
    )
    return "\n".join(each.output[-1500:] for each in ranks if each.exit_code)


def _train(cell: Cell) -> dict[str, list[float]]:
    import torch
    import torch.distributed as dist

    from stratlab_spec.plan import learning_rate
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
