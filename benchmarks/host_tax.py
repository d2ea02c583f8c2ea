"""Measure the host's time per step for tracking, phases, metrics and the profiler's schedule, over a bare loop.

    OMP_NUM_THREADS=1 python benchmarks/host_tax.py # or: make bench

The model is 25 linear layers (50 parameter tensors) with SGD, batch 8, one process, CPU. The real loop and a bare one
take turns step by step, so that both see the same machine: noise of a shared host was larger than the tax otherwise.
Counted are steps 101 to 600 in windows of `log_every` steps (each holds one write of the metrics); the median window
is printed. CPU time of the process, because wall time on a shared machine measures the neighbours. `alone` is the
same loop around an engine that computes nothing: no noise of the model, no pressure of it on the caches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stratlab_spec.plan import resolve_plan
from stratlab_spec.schedule import learning_rate
from stratlab_spec.settings.config import Config
from trainer.data.batches import Batch
from trainer.distributed.consensus import Agreement
from trainer.distributed.world import Precision, processor_name, read_world
from trainer.engine import StepResult
from trainer.engines.torch_engine import TorchEngine
from trainer.loop import train
from trainer.measuring.hardware import Meter
from trainer.measuring.memory import TrainingMemory, open_counters
from trainer.measuring.phases import Phases
from trainer.measuring.profiler import StepProfiler
from trainer.metrics.tracking import Recorder
from trainer.models.model_with_loss import ClassLoss, Learner
from trainer.run import Run, build_run

SHORT, LONG = 100, 600
TARGET_US = 60.0


class BarePhases:
    """The engine's phases without clocks or labels, in place of `Phases` in the bare loop."""

    forward = backward = optimizer = nullcontext()


class IdleEngine:
    """Enter the phases without computing."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._result = StepResult(torch.tensor(0.5), torch.tensor(1.0), 8)

    def train_step(self, batch: Batch, lr: float) -> StepResult:
        with self._phases.forward:
            pass
        with self._phases.backward:
            pass
        with self._phases.optimizer:
            pass
        return self._result


class Layers(Learner):
    """25 linear layers."""

    step_measures = ClassLoss.step_measures

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(25)))
        self.loss = ClassLoss()

    def predict(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)

    def score(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.loss(self.predict(inputs), labels)


def build_bench_run(folder: Path) -> Run:
    """Return one process, no profile but the default one."""
    config = Config(run="bench", results=str(folder), optimizer="sgd", profile_first_step=20)
    world = read_world(os.environ)
    plan = resolve_plan(config, world.size, world.local_size, config.global_batch_size)
    plan = replace(plan, steps=LONG, evaluate_every=LONG, profile_first=config.profile_first_step)
    return build_run(config, world, plan, Precision("fp32"))


def build_engine(run: Run, phases: object) -> TorchEngine:
    torch.manual_seed(0)
    return TorchEngine(run, Layers(), phases)  # type: ignore[arg-type]


def time_steps(run: Run, engine: Any, phases: Phases, batch: Batch) -> tuple[list[float], list[float]]:
    """Return CPU microseconds per step of the real loop and of the bare one, of windows of steps 101 to 600.

    The bare step runs inside the real loop's `next_batch`, and its time is subtracted.
    """
    config = run.config
    run.folder.create()
    bare_engine = build_engine(run, BarePhases()) if not isinstance(engine, IdleEngine) else None
    memory = TrainingMemory(open_counters(run.world), phases, 1, LONG)
    meter = Meter(run.world, memory)
    recorder = Recorder(
        run.folder.metrics, 1, config.log_every, read_system=meter.read, step_measures=Layers.step_measures
    )
    profiler = StepProfiler(run, config.profile_first_step, phases)
    real_ns: list[int] = []
    bare_ns: list[int] = []
    left = time.process_time_ns()

    def next_batch(step: int) -> Batch:
        nonlocal left
        came = time.process_time_ns()
        real_ns.append(came - left)  # of the step before
        if bare_engine:
            bare_engine.train_step(batch, learning_rate(config, step, LONG))
        left = time.process_time_ns()
        bare_ns.append(left - came)
        return batch

    agreement = Agreement(config.collective_timeout_s)
    train(
        run, 1, engine, next_batch, phases, memory, recorder, profiler, agreement,
        validate=lambda _: None, after_step=lambda _: None,
    )  # fmt: skip
    recorder.close()
    meter.close()
    size = config.log_every

    def windows(values: list[int]) -> list[float]:
        return [sum(values[i : i + size]) / size / 1e3 for i in range(SHORT + 1, LONG - size, size)]

    return windows(real_ns), windows(bare_ns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.set_num_threads(1)
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    batch = Batch([(torch.randn(8, 32), torch.randint(0, 32, (8,)))], 8, 8)
    real: list[float] = []
    bare: list[float] = []
    alone: list[float] = []
    for number in range(rounds + 1):  # the first round warms up
        with tempfile.TemporaryDirectory() as folder:
            phases = Phases("cpu")
            run = build_bench_run(Path(folder))
            full, plain = time_steps(run, build_engine(run, phases), phases, batch)
        with tempfile.TemporaryDirectory() as folder:
            phases = Phases("cpu")
            idle, _ = time_steps(build_bench_run(Path(folder)), IdleEngine(phases), phases, batch)
        if number:
            real, bare, alone = real + full, bare + plain, alone + idle
    added = sorted(f - b for f, b in zip(real, bare, strict=True))
    bare_us, added_us = statistics.median(bare), statistics.median(added)
    report = {
        "bare_us_per_step": round(bare_us, 1),
        "added_us_per_step": round(added_us, 1),
        "added_us_quartiles": [round(added[len(added) // 4], 1), round(added[3 * len(added) // 4], 1)],
        "alone_us_per_step": round(statistics.median(alone), 1),
        "ratio_to_bare": round(1 + added_us / bare_us, 4),
        "windows": len(added),
        "target_us": TARGET_US,
        "rounds": rounds,
        "hardware": processor_name(),
        "torch": torch.__version__,
        "clock": "CPU time of the process",
    }
    print(json.dumps(report, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
