"""What tracking, phases, metrics and the profiler's schedule cost the host per step, over a bare loop.

    OMP_NUM_THREADS=1 python benchmarks/host_tax.py          # or: make bench

The model is 25 linear layers (50 parameter tensors) with SGD, batch 8, one process, CPU. Per step = slope between 100
and 600 steps, so that what happens once does not count. CPU time of the whole process, because wall time on a shared
machine measures the neighbours. Bare and instrumented runs alternate; noise only ever adds time, so the least of the
rounds is printed, with the paired differences beside it. `alone` is the same loop around an engine that computes
nothing: the tax without the noise of the model, and without its pressure on the caches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainer.config import Config
from trainer.data.batches import Batch
from trainer.engine import StepResult, TorchEngine
from trainer.hardware import processor_name
from trainer.loop import train
from trainer.phases import Phases
from trainer.profiler import StepProfiler
from trainer.run_directory import RunDirectory
from trainer.schedule import Plan, learning_rate
from trainer.tracking import Recorder

SHORT, LONG = 100, 600
TARGET_US = 60.0


class Bare:
    """The engine's phases without clocks or labels."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class BarePhases:
    """Stands in for `Phases` in the bare loop."""

    forward = backward = optimizer = Bare()


class IdleEngine:
    """Enters the phases and computes nothing."""

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


def build_engine(phases: object) -> TorchEngine:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(25)))
    return TorchEngine(Config(run="bench", optimizer="sgd"), model, phases, "cpu")  # type: ignore[arg-type]


def run_bare(steps: int, batch: Batch) -> float:
    """CPU seconds of `steps` steps of the engine alone."""
    config, engine = Config(run="bench"), build_engine(BarePhases())
    began = time.process_time()
    for step in range(1, steps + 1):
        engine.train_step(batch, learning_rate(config, step, steps))
    return time.process_time() - began


def run_instrumented(steps: int, batch: Batch, folder: Path, idle: bool = False) -> float:
    """CPU seconds of the real loop: phases, recorder, profiler schedule; the profiled steps lie outside the slope."""
    config = Config(run=f"bench{steps}{idle}", results=str(folder), profile_first_step=20)
    directory = RunDirectory(config.results, config.comparison, config.run)
    directory.create()
    phases = Phases("cpu")
    engine: Any = IdleEngine(phases) if idle else build_engine(phases)
    recorder = Recorder(directory.metrics, 1, config.log_every)
    profiler = StepProfiler(config, config.profile_first_step, phases, directory, 0)
    plan = Plan(steps, evaluate_every=steps, profile_first=config.profile_first_step)
    began = time.process_time()
    train(config, plan, engine, lambda _: batch, phases, recorder, profiler, lambda _: None)
    spent = time.process_time() - began
    recorder.close()
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    torch.set_num_threads(1)
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    batch = Batch([(torch.randn(8, 32), torch.randint(0, 32, (8,)))], 8)
    slopes: dict[str, list[float]] = {"bare": [], "instrumented": [], "alone": []}
    for number in range(rounds + 1):  # the first round warms up
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            found = {
                "bare": run_bare(LONG, batch) - run_bare(SHORT, batch),
                "instrumented": run_instrumented(LONG, batch, folder)
                - run_instrumented(SHORT, batch, folder),
                "alone": run_instrumented(LONG, batch, folder, True)
                - run_instrumented(SHORT, batch, folder, True),
            }
        for kind, seconds in found.items():
            slopes[kind] += [seconds / (LONG - SHORT) * 1e6] if number else []
    bare_us, full_us, alone_us = (min(slopes[kind]) for kind in ("bare", "instrumented", "alone"))
    added = sorted(f - b for b, f in zip(slopes["bare"], slopes["instrumented"], strict=True))
    report = {
        "bare_us_per_step": round(bare_us, 1),
        "instrumented_us_per_step": round(full_us, 1),
        "added_us_per_step": round(full_us - bare_us, 1),
        "added_us_paired": {"least": round(added[0], 1), "median": round(statistics.median(added), 1)},
        "alone_us_per_step": round(alone_us, 1),
        "ratio_to_bare": round(full_us / bare_us, 4),
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
