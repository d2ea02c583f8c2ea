"""Measure the host's cost of sharding: CPU time per step and per parameter tensor, as ratios to ddp in the same run.

    OMP_NUM_THREADS=1 python benchmarks/sharding_host_cost.py

Two stacks of small linear layers, with 50 and with 400 parameter tensors, SGD, batch 4 per process, 2 processes,
gloo. Every rank holds one engine per strategy and steps them in turn, round after round, so that all see the same
machine. It is CPU time of the process, because wall time on a shared machine includes its other processes. The cost
per parameter is the slope between the two models: (median of 400 - median of 50) / 350. In zero3 no parameter is kept
whole, as in a large model. The model's own arithmetic and gloo's threads count too. It measures the host's work, not
a device: no statement about speed on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn

from stratlab_spec.plan import resolve_plan
from stratlab_spec.settings.config import Config
from trainer.data.batches import Batch
from trainer.distributed.world import Precision, processor_name, read_world
from trainer.engine import Engine
from trainer.engines.deepspeed_config import ZERO
from trainer.measuring.phases import Phases
from trainer.models.model_with_loss import ClassLoss, Learner
from trainer.run import build_run
from trainer.strategies import build_engine

STRATEGIES = ("ddp", "fsdp", "zero1", "zero2", "zero3")
SIZES = (50, 400)
"""Parameter tensors."""
WORLD_SIZE, WIDTH, BATCH = 2, 16, 4
# small parameters are also freed after use, as the large ones of a real model
GATHERED = {"stage3_param_persistence_threshold": 0}


class Stack(Learner):
    """Residual blocks of five linear layers: ten parameter tensors each."""

    flops_per_sample = 1.0
    step_measures = ClassLoss.step_measures

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.loss = ClassLoss()
        blocks = [[nn.Linear(WIDTH, WIDTH) for _ in range(5)] for _ in range(parameters // 10)]
        self.stack = nn.Sequential(*(nn.Sequential(*block) for block in blocks))

    def predict(self, images: Tensor) -> Tensor:
        return self.stack(images.flatten(1))

    def score(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.loss(self.predict(images), labels)

    def blocks(self) -> list[nn.Module]:
        return list(self.stack)


def build(strategy: str, parameters: int) -> Engine:
    sizes = {"global_batch_size": WORLD_SIZE * BATCH, "micro_batch_size": BATCH}
    config = Config(run="bench", strategy=strategy, optimizer="sgd", lr=1e-4, **sizes)
    torch.manual_seed(0)
    world = read_world(os.environ)
    plan = resolve_plan(config, world.size, world.local_size, config.global_batch_size)
    run = build_run(config, world, plan, Precision("fp32"))
    return build_engine(run, Stack(parameters), Phases("cpu"))


def measure(rank: int, store: str, out: str, rounds: int, steps: int) -> None:
    """Run one rank: CPU microseconds per step of every strategy, one value per round."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE), LOCAL_WORLD_SIZE=str(WORLD_SIZE)
    )
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", DS_ACCELERATOR="cpu")
    torch.set_num_threads(1)
    ZERO["zero3"] |= GATHERED
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE)
    drawn = torch.randn(BATCH, 1, 4, 4), torch.randint(0, WIDTH, (BATCH,))
    batch = Batch([drawn], WORLD_SIZE * BATCH, WORLD_SIZE * BATCH)
    found: dict[int, dict[str, list[float]]] = {}
    for size in SIZES:
        engines = {strategy: build(strategy, size) for strategy in STRATEGIES}
        found[size] = {strategy: [] for strategy in STRATEGIES}
        for number in range(rounds + 1):  # the first round warms up
            for strategy, engine in engines.items():
                dist.barrier()
                began = time.process_time_ns()
                for _ in range(steps):
                    engine.train_step(batch, 1e-4)
                if number:
                    found[size][strategy].append((time.process_time_ns() - began) / steps / 1e3)
            if rank == 0:
                print(f"{size} parameters: round {number} of {rounds}", file=sys.stderr, flush=True)
        for engine in engines.values():
            engine.close()
    if rank == 0:
        Path(out).write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # DeepSpeed's exit handlers want the process group that is going away


def table(found: dict[str, dict[str, list[float]]], rounds: int, steps: int) -> str:
    """Return medians with quartiles, ratios to ddp of the same round, and the slope per parameter."""
    per_size = f"{'us/step':>10} {'quartiles':>19} {'to ddp':>13}"
    lines = [
        f"{'':6}" + "".join(f"{size + ' parameters':>44}" for size in found) + f"{'per parameter':>24}",
        f"{'':6}" + per_size * len(found) + f"{'us':>13}{'to ddp':>11}",
    ]
    small, large = (found[str(size)] for size in SIZES)
    slopes = {s: _slope(small[s], large[s]) for s in STRATEGIES}
    for strategy in STRATEGIES:
        line = f"{strategy:6}"
        for values in (small, large):
            low, middle, high = statistics.quantiles(values[strategy], n=4)
            ratios = [a / b for a, b in zip(values[strategy], values["ddp"], strict=True)]
            line += f"{middle:10.0f} {f'{low:.0f} - {high:.0f}':>19} {statistics.median(ratios):13.2f}"
        lines.append(line + f"{slopes[strategy]:13.2f}{slopes[strategy] / slopes['ddp']:11.2f}")
    how = f"{WORLD_SIZE} processes, gloo, {rounds} rounds of {steps} steps, CPU time of rank 0"
    return "\n".join([*lines, f"{how}; {processor_name()}; torch {torch.__version__}"])


def _slope(small: list[float], large: list[float]) -> float:
    return (statistics.median(large) - statistics.median(small)) / (SIZES[1] - SIZES[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="of one strategy in one round")
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error(f"--rounds={given.rounds}: quartiles need at least 2 [SL-bench-rounds]")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        arguments: tuple[Any, ...] = (f"{folder}/store", str(out), given.rounds, given.steps)
        multiprocessing.spawn(measure, arguments, nprocs=WORLD_SIZE)  # type: ignore[no-untyped-call]
        print(table(json.loads(out.read_text()), given.rounds, given.steps))


if __name__ == "__main__":
    main()
