"""Checkpoints of ranks whose engine is a stand-in that saves one tensor: step and rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from stratlab_spec.run_directory import RunDirectory
from trainer.checkpoint.folder import CheckpointFolder

STEPS = 8


def build(
    results: Path,
    every: int = 2,
    keep: int = 2,
    resume: str = "auto",
    steps: int = STEPS,
    asked: tuple[int, ...] = (),
    load: bool = True,
):
    """(checkpoints, engine, attempt) of this rank, in a process group of its own."""
    import torch
    import torch.distributed as dist

    from stratlab_spec.settings.config import Config
    from tests.trainer.runs import run_of
    from trainer.checkpoint.attempt import open_attempt
    from trainer.checkpoint.store import Checkpoints
    from trainer.distributed.consensus import open_disk_group
    from trainer.engine import StepResult, Written
    from trainer.measuring.held_tensors import Observed
    from trainer.metrics.tracking import Recorder

    class Copy:
        held_bytes = 8

        def __init__(self, engine: StandIn) -> None:
            self.engine, self.value = engine, engine.value.clone()

        def write(self, folder: Path) -> Written:
            return Written(self.engine.save(folder, self.value))

        def finish(self, folder: Path, parts: list[None]) -> list[str]:
            assert parts == [None] * dist.get_world_size()
            return []

    class StandIn:
        def __init__(self) -> None:
            self.observed = Observed({"parameters": 8}, {"parameters": ["float32"]})
            self.module = torch.nn.Linear(1, 1)
            self.value = torch.zeros(2)

        def snapshot(self) -> Copy:
            return Copy(self)

        def save(self, folder: Path, value: torch.Tensor) -> list[str]:
            torch.save(value, folder / f"rank{dist.get_rank()}.pt")
            return [f"rank{dist.get_rank()}.pt"]

        def load(self, folder: Path) -> None:
            self.value = torch.load(folder / f"rank{dist.get_rank()}.pt", weights_only=True)

    dist.init_process_group("gloo")
    config = Config(
        run="try", results=str(results), strategy="ddp", checkpoint_every=every, checkpoint_keep=keep,
        resume=resume,
    )  # fmt: skip
    run = run_of(config)
    run = replace(run, plan=replace(run.plan, steps=steps))
    group = open_disk_group(60)
    attempt = open_attempt(run, {}, "test", group)
    recorder = Recorder(run.folder.metrics if run.writes else None, attempt.number, 1)
    engine = StandIn()
    checkpoints = Checkpoints(run, engine, recorder, attempt, group)
    if load:
        checkpoints.load()

    done = [attempt.from_step]

    def step_until(last: int, accuracies: dict[int, float] | None = None, finish: bool = True) -> None:
        for step in range(done.pop() + 1, last + 1):
            engine.value = torch.tensor([step, dist.get_rank()])
            result = StepResult(torch.tensor(1.0 / step), 1.0, 64)
            recorder.record_step(step, 0.1, result, (1, 1, 1, 1, 1), False)
            if accuracies and step in accuracies:
                checkpoints.validation = {"step": step, "loss": 1.0, "accuracy_pct": accuracies[step]}
            checkpoints.after_step(step, asked=step in asked)
        done.append(last)
        if finish:
            checkpoints.finish()

    return checkpoints, engine, attempt, step_until


def folder_of(results: Path) -> CheckpointFolder:
    return CheckpointFolder(RunDirectory(results, "default", "try"))


def read_lines(results: Path) -> list[dict]:
    return [json.loads(line) for line in RunDirectory(results, "default", "try").metrics.open()]


def exit_by_its_code(work: Callable[[], None]) -> None:
    """In a rank: ends as the worker would, with the stack in its output."""
    import traceback

    from stratlab_spec.exit_codes import exit_code

    try:
        work()
    except Exception as failure:
        traceback.print_exc()
        raise SystemExit(exit_code(failure)) from failure
