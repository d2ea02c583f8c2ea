"""The courses of training that are compared, one rank that runs some of them, and the verdict."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from stratlab_spec.settings.config import Config

if TYPE_CHECKING:
    from torch import nn


SEEDS = (0, 1, 2)
PRECISIONS = ("fp32", "bf16")
STEPS = 300
FAULT = 1.05
"""What every gradient is multiplied with in the courses that must not pass."""
COMMON = {"warmup_steps": 10}
MODELS: dict[str, dict[str, Any]] = {
    "vit_tiny": COMMON
    | {"dataset": "digits", "image_size": 16, "global_batch_size": 32, "micro_batch_size": 8, "lr": 1e-4},
    "qwen_tiny": COMMON
    | {"dataset": "arithmetic", "seq_len": 64, "global_batch_size": 8, "micro_batch_size": 2, "lr": 5e-5},
}
"""One micro-batch size for all: a product in bf16 rounds once per micro-batch, so another one is another training.

Rates: such at which one process ends where it ends when its first weights are disturbed, in bf16. Two parts in ten
million make 0.12 of the seeds' spread of vit_tiny, at twice the rate 0.28; of qwen_tiny's 0.013, at twice the rate
0.17. There the check would judge rounding (LAB.md, 2026-11-26).
"""
SGD_RATE = {"vit_tiny": 0.05, "qwen_tiny": 0.2}
"""Adam's update does not know the gradients' size: the fault shows with SGD."""
DISTURBED = "single disturbed"
"""One process whose first weights differ by a part in ten million: what rounding alone makes of a training."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "single": {},
    DISTURBED: {},
    **{name: {} for name in ("ddp", "fsdp", "zero1", "zero2", "zero3")},
    "hsdp": {"dp_replicate": 2, "dp_shard": 2},
    "zeropp": {"zeropp": "hpz"},
    "nd dp2.tp2": {"layout": "given", "dp_shard": 2, "tp": 2},
    "nd pp2.cp2": {"layout": "given", "pp": 2, "cp": 2},
}
"""Strategy, and for nd a mesh, with the settings that make it."""


@dataclass(frozen=True)
class Course:
    model: str
    layout: str
    """Of LAYOUTS."""
    precision: str
    seed: int
    optimizer: str = "adamw"
    faulty: bool = False
    steps: int = STEPS

    @property
    def name(self) -> str:
        marks = [self.optimizer] * (self.optimizer != "adamw") + ["gradients x 1.05"] * self.faulty
        return " ".join([self.model, self.layout, self.precision, f"seed {self.seed}", *marks])

    @property
    def world_size(self) -> int:
        return {"single": 1, "hsdp": 4, "zeropp": 4, "nd": 4}.get(self.layout.split()[0], 2)

    def config(self, results: Path) -> Config:
        """The settings of its run; the tokens of a data set lie in `results`."""
        settings = dict(MODELS[self.model]) | LAYOUTS[self.layout]
        if self.optimizer == "sgd":
            settings |= {"lr": SGD_RATE[self.model], "weight_decay": 0.0}
        return Config(
            run="convergence", results=str(results), model=self.model, strategy=self.layout.split()[0],
            precision=self.precision, optimizer=self.optimizer, seed=self.seed, steps=self.steps,
            **settings,
        )  # fmt: skip

    def key(self, tree: str) -> str:
        """Changes with what is run, and with the tree's state `tree`."""
        run = [asdict(self), MODELS[self.model], LAYOUTS[self.layout], tree]
        return hashlib.sha256(json.dumps(run).encode()).hexdigest()[:16]


def list_courses(steps: int = STEPS) -> Iterator[Course]:
    """Every model, precision and seed; one process first, which the others are compared with."""
    for model in MODELS:
        for precision in PRECISIONS:
            for layout in LAYOUTS:
                if layout.startswith("nd") and model == "vit_tiny":
                    continue  # trains language models
                for seed in SEEDS:
                    yield Course(model, layout, precision, seed, steps=steps)
            for faulty in (False, True):
                for seed in SEEDS:
                    yield Course(model, "single", precision, seed, "sgd", faulty, steps)


def run_course(course: Course, results: Path, out: Path) -> None:
    """On one rank; rank 0 writes {loss: of the validation split at the end, first: of the first step} to `out`."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    local_size = {"zeropp": "2"}.get(course.layout, os.environ["WORLD_SIZE"])  # hpz: two nodes
    with mock.patch.dict(os.environ, LOCAL_WORLD_SIZE=local_size), _plant(course):
        found = _train(course.config(results), disturbed=course.layout == DISTURBED)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.barrier()


def _plant(course: Course) -> AbstractContextManager[Any]:
    from trainer.engines.torch_engine import TorchEngine

    whole = TorchEngine.__init__

    def scaled(self: Any, *given: Any, **named: Any) -> None:
        whole(self, *given, **named)
        self._loss_factor *= FAULT if course.faulty else 1.0

    return mock.patch.object(TorchEngine, "__init__", scaled)


def _disturb(model: nn.Module, seed: int) -> None:
    import torch

    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 1e-7 * torch.randn(parameter.shape, generator=draws))


def _train(config: Config, disturbed: bool) -> dict[str, float]:
    import torch.distributed as dist

    from stratlab_spec.models.model_specs import default_image_size
    from stratlab_spec.plan import resolve_plan
    from stratlab_spec.schedule import learning_rate
    from trainer.data import open_data
    from trainer.data.batches import Share
    from trainer.distributed.world import read_world, resolve_precision
    from trainer.measuring.phases import Phases
    from trainer.run import build_run
    from trainer.strategies import build_engine, builds_empty
    from trainer.tasks import open_task

    world = read_world(os.environ)
    data = open_data(config, config.image_size or default_image_size(config))
    plan = resolve_plan(config, world.size, world.local_size, len(data.train))
    task = open_task(config, Share(plan.axes.dp_rank(world.rank), plan.axes.dp), world.device)
    run = build_run(config, world, plan, resolve_precision(config, "cpu"))
    model = task.build_model(builds_empty(config, world.rank))
    if disturbed:
        _disturb(model, config.seed)
    engine = build_engine(run, model, Phases("cpu"))
    task.start(0)
    first = 0.0
    for step in range(1, config.steps + 1):
        result = engine.train_step(task.next_batch(step), learning_rate(config, step, config.steps))
        if step == 1:
            loss = result.loss.clone()
            dist.all_reduce(loss)
            first = float(loss)
    found = {"loss": task.evaluate(engine, "validation").loss, "first": first}
    engine.close()
    return found


ALLOWED = 0.25
"""Of the spread of one process's final losses over the seeds, per seed."""


@dataclass(frozen=True)
class Verdict:
    """Of one model, layout and precision over all seeds."""

    course: Course
    """That of the first seed."""
    differences: tuple[float, ...]
    """Final loss minus that of one process, by seed."""
    spread: float
    """Largest minus smallest final loss of one process."""

    @property
    def share(self) -> float:
        return max(map(abs, self.differences)) / self.spread

    @property
    def passes(self) -> bool:
        return self.share <= ALLOWED

    @property
    def holds(self) -> bool:
        """As it should be: a planted fault must not pass."""
        return self.passes != self.course.faulty


def alone(course: Course) -> Course:
    """What it is compared with: one process, without a fault."""
    return replace(course, layout="single", faulty=False)


def judge(courses: Sequence[Course], losses: Mapping[str, float]) -> list[Verdict]:
    """Of every group whose seeds have all been run, and those of one process with them; none of one process itself."""
    verdicts = []
    for course in courses:
        if course.seed != SEEDS[0] or (course.layout == "single" and not course.faulty):
            continue
        seeds = [replace(course, seed=seed) for seed in SEEDS]
        if any(each.name not in losses for each in (*seeds, *map(alone, seeds))):
            continue
        reference = [losses[alone(each).name] for each in seeds]
        differences = [losses[each.name] - base for each, base in zip(seeds, reference, strict=True)]
        verdicts.append(Verdict(course, tuple(differences), max(reference) - min(reference)))
    return verdicts
