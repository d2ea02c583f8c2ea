"""Measure how long training pauses for checkpoints, against plain blocking `torch.distributed.checkpoint.save`.

    OMP_NUM_THREADS=1 python benchmarks/checkpoint_stall.py          # or: make bench-checkpoints

One process on a CPU, gloo; AdamW on linear layers, a state of 420 MB (weights and two moments, fp32). Blocks of 50
steps take turns, in a new order each round: without checkpoints, with three of the lab's, with three of the peer's,
at the same steps. A block's stall is its wall time minus the wall time of the round's block without checkpoints. The
lab's checkpoints are whole: copied, written, made durable, hashed, committed, older ones removed. The blocks
wait for the last of them in between, when the peer has finished. The peer writes and makes durable the same tensors.

In addition to the blocks, a clock around the calls measures the time of `after_step` and of `dcp.save`. The first
checkpoint takes its memory from the system; it is left out, and reported separately.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

from stratlab_spec.plan import resolve_plan
from stratlab_spec.settings.config import Config
from trainer.checkpoint.attempt import Attempt
from trainer.checkpoint.store import Checkpoints
from trainer.data.batches import Batch
from trainer.distributed.consensus import open_disk_group
from trainer.distributed.world import Precision, processor_name, read_world
from trainer.engines.torch_engine import TorchEngine
from trainer.measuring.phases import Phases
from trainer.metrics.tracking import Recorder
from trainer.models.model_with_loss import ClassLoss, Learner
from trainer.run import Run, build_run

STEPS, SAVES_BEHIND = 50, (8, 22, 36)
LAYERS, WIDTH, ROWS = 35, 1000, 128
LARGEST_RATIO = 0.15
KINDS = ("without", "lab", "peer")


class Layers(Learner):
    """Linear layers, one million parameters each."""

    step_measures = ClassLoss.step_measures

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
        self.loss = ClassLoss()

    def score(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.loss(self.layers(inputs), labels)


class Bench:
    """The engine with both ways to save it."""

    def __init__(self, folder: Path, layers: int) -> None:
        config = Config(run="bench", results=str(folder), checkpoint_minutes=0, checkpoint_keep=1)
        world = read_world(os.environ)
        plan = resolve_plan(config, world.size, world.local_size, config.global_batch_size)
        plan = replace(plan, steps=10**9, evaluate_every=10**9, profile_first=0)
        run: Run = build_run(config, world, plan, Precision("fp32"))
        run.folder.create()
        torch.manual_seed(0)
        self.phases = Phases("cpu")
        self.engine = TorchEngine(run, Layers(layers), self.phases)
        self.recorder = Recorder(run.folder.metrics, 1, 10, step_measures=Layers.step_measures)
        attempt = Attempt(1, None, [], True)
        self.checkpoints = Checkpoints(run, self.engine, self.recorder, attempt, open_disk_group(600))
        self.peer_folder = folder / "peer"
        drawn = torch.randn(ROWS, WIDTH), torch.randint(0, WIDTH, (ROWS,))
        self.batch = Batch([drawn], ROWS, ROWS)
        self.step = 0

    def save_lab(self) -> None:
        self.checkpoints.after_step(self.step, asked=True)

    def save_peer(self) -> None:
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        model, optimizer = get_state_dict(self.engine.module, self.engine.optimizers[0], options=options)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=self.peer_folder / str(self.step))

    def run_block(self, save: Callable[[], None] | None) -> tuple[float, list[float]]:
        """Return (seconds of the steps, seconds of each call that saves)."""
        calls, began = [], time.perf_counter()
        for i in range(1, STEPS + 1):
            self.step += 1
            with self.phases.begin_step(self.step):
                result = self.engine.train_step(self.batch, 1e-4)
            self.recorder.record_step(self.step, 1e-4, result, self.phases.take(), False)
            if save and i in SAVES_BEHIND:
                at = time.perf_counter()
                save()
                calls.append(time.perf_counter() - at)
        taken = time.perf_counter() - began
        self.checkpoints.finish()
        shutil.rmtree(self.peer_folder, ignore_errors=True)
        return taken, calls


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def measure(rounds: int, layers: int) -> dict[str, Any]:
    """Return seconds of every block and call."""
    blocks: dict[str, list[float]] = {kind: [] for kind in KINDS}
    calls: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="stratlab-checkpoints-") as folder:
        bench = Bench(Path(folder), layers)
        saves = {"without": None, "lab": bench.save_lab, "peer": bench.save_peer}
        _, first = bench.run_block(bench.save_lab)  # its memory, and the peer's imports
        bench.run_block(bench.save_peer)
        size = next(bench.checkpoints._folder.step(s) for s in bench.checkpoints._folder.committed())
        state_bytes = sum(path.stat().st_size for path in size.rglob("*") if path.is_file())
        for number in range(rounds):
            for kind in (*KINDS[number % 3 :], *KINDS[: number % 3]):
                taken, called = bench.run_block(saves[kind])
                blocks[kind].append(taken)
                calls[kind] += called
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        bench.recorder.close()
    return {"blocks_s": blocks, "calls_s": calls, "first_call_s": first[0], "state_bytes": state_bytes}


def report(found: dict[str, Any]) -> float:
    """Print the result; return the ratio that is judged."""
    blocks, calls = found["blocks_s"], found["calls_s"]
    without = blocks["without"]
    stalls = {k: [a - b for a, b in zip(blocks[k], without, strict=True)] for k in ("lab", "peer")}
    ratio = statistics.median(stalls["lab"]) / statistics.median(stalls["peer"])
    print(f"state {found['state_bytes'] / 1e6:.0f} MB, {len(blocks['lab'])} rounds on {processor_name()}")
    print(f"{STEPS} steps without checkpoints, s: {quartiles(blocks['without'])}")
    for kind in ("lab", "peer"):
        print(f"{kind:5} stall of a block, s: {quartiles(stalls[kind])}; a call, s: {quartiles(calls[kind])}")
    shares = [a / b for a, b in zip(stalls["lab"], stalls["peer"], strict=True)]
    print(f"ratio of stalls round by round: {quartiles(shares)}")
    by_calls = statistics.median(calls["lab"]) / statistics.median(calls["peer"])
    print(f"ratio of calls: {by_calls:.3f}; the lab's first call, s: {found['first_call_s']:.3f}")
    print(f"ratio of the median stalls: {ratio:.3f}, at most {LARGEST_RATIO}")
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="at least 2")
    size = "of a million parameters each, 12 MB of state"
    parser.add_argument("--layers", type=int, default=LAYERS, help=size)
    parser.add_argument("--output", type=Path, help="keep every number in this file")
    arguments = parser.parse_args()
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    for name, value in (alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}).items():
        os.environ.setdefault(name, value)
    torch.set_num_threads(1)  # the other core is the disk's, as a node with devices has cores to spare
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    found = measure(arguments.rounds, arguments.layers)
    ratio = report(found)
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    dist.destroy_process_group()
    sys.exit(ratio > LARGEST_RATIO)


if __name__ == "__main__":
    main()
