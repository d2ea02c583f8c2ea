"""Ranks that save are killed at a drawn moment, start again, and are killed again; by tests/faults."""

import json
import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from stratlab_spec.run_directory import RunDirectory
from tests.ranks import fork_ranks
from tests.trainer.checkpoint.stand_in import build
from trainer.checkpoint.folder import COMMIT, CheckpointFolder, find_problem

EVERY = 2
TENSORS = 20
MEASURED = 2
"""Saves of each start that are left alone and measured: how long one takes differs by a factor of three."""


@dataclass
class Kills:
    saves_s: list[float] = field(default_factory=list)
    """From a save's first byte to its COMMIT: of every start the shorter of the saves before that which is killed."""
    while_saving: list[float] = field(default_factory=list)
    """When a kill left a save without COMMIT: as a part of `saves_s` of the same ranks, from its first byte on."""
    between: int = 0
    """Kills when COMMIT was there."""
    problems: list[str] = field(default_factory=list)
    """Of the newest committed checkpoint after a kill."""

    def histogram(self, bins: int = 10) -> str:
        """Kills by the part of a whole save that was over; the last row is what was longer than one."""
        counts = [
            sum(min(int(part * bins), bins) == i for part in self.while_saving) for i in range(bins + 1)
        ]
        rows = [f"  from {100 * i // bins:3d} %  {count:4d}  {'#' * count}" for i, count in enumerate(counts)]
        takes = f"a save takes {min(self.saves_s):.2f} to {max(self.saves_s):.2f} s"
        return "\n".join(
            [f"{len(self.while_saving)} kills in a save, {self.between} behind it; {takes}", *rows]
        )


def train_and_save(results: Path, state_bytes: int) -> None:
    """One rank: goes on from the newest checkpoint, looks at every number of it, and saves every other step."""
    import torch
    import torch.distributed as dist

    from trainer.checkpoint.dcp_files import read_sharded
    from trainer.checkpoint.state import ShardedStaging

    checkpoints, engine, attempt, step_until = build(results, every=EVERY, steps=10**6, load=False)
    tensors = {f"w{i}": torch.zeros(state_bytes // 4 // TENSORS) for i in range(TENSORS)}
    staging = ShardedStaging()

    def load(folder: Path) -> None:
        read_sharded(tensors, folder)
        whole = all(bool((tensor == attempt.from_step).all()) for tensor in tensors.values())
        if not whole:
            (results / "damaged").write_text(f"step {attempt.from_step} holds other numbers")

    def snapshot():
        for tensor in tensors.values():
            tensor.fill_(now[0])
        return staging.take(tensors)

    engine.load, engine.snapshot = load, snapshot
    checkpoints.load()
    now = [attempt.from_step]
    (results / f"pid{dist.get_rank()}").write_text(str(os.getpid()))
    for step in range(attempt.from_step + 1, 10**6):
        now[0] = step
        time.sleep(0.01)
        step_until(step, finish=False)


class Killer(threading.Thread):
    """Measures some saves, waits within the next one for a drawn part of that time, and kills every rank."""

    def __init__(self, results: Path, ranks: int, drawn: random.Random, kills: Kills) -> None:
        super().__init__(daemon=True)
        self._results, self._ranks, self._drawn, self._kills = results, ranks, drawn, kills
        self._folder = CheckpointFolder(RunDirectory(results, "default", "try"))

    def run(self) -> None:
        pids = [self._results / f"pid{rank}" for rank in range(self._ranks)]
        while not all(pid.exists() and pid.read_text() for pid in pids):
            time.sleep(0.005)
        done = {*self._folder.committed()}
        whole_s = float("inf")
        for _ in range(MEASURED):
            step, began = self._first_byte(done)
            while not self._is_sealed(step):
                time.sleep(0.001)
            whole_s = min(whole_s, time.monotonic() - began)
            done.add(step)
        step, began = self._first_byte(done)
        time.sleep(max(0.0, began + self._drawn.uniform(0, 1) * whole_s - time.monotonic()))
        for pid in pids:
            os.kill(int(pid.read_text()), signal.SIGKILL)
        after_s = time.monotonic() - began
        time.sleep(0.05)
        self._kills.saves_s.append(whole_s)
        if self._is_sealed(step):
            self._kills.between += 1
        else:
            self._kills.while_saving.append(after_s / whole_s)

    def _is_sealed(self, step: int) -> bool:
        """Whether its COMMIT is there, under either of its names."""
        return any(
            (path / COMMIT).exists() for path in (self._folder.temporary(step), self._folder.step(step))
        )

    def _first_byte(self, done: set[int]) -> tuple[int, float]:
        while True:
            for folder in self._folder.path.glob(".tmp-step_*"):
                step = folder.name.removeprefix(".tmp-step_")
                if step.isdigit() and int(step) not in done and any(folder.rglob("*.distcp")):
                    return int(step), time.monotonic()
            time.sleep(0.001)


def kill_while_saving(results: Path, kills: int, state_bytes: int, ranks: int = 2, seed: int = 7) -> Kills:
    """Kills all ranks so often, each time in or behind a save; the next start loads what the last one left."""
    found, drawn = Kills(), random.Random(seed)
    folder = CheckpointFolder(RunDirectory(results, "default", "try"))
    for _ in range(kills):
        for pid in results.glob("pid*"):
            pid.unlink()
        killer = Killer(results, ranks, drawn, found)
        killer.start()
        done = fork_ranks(lambda: train_and_save(results, state_bytes), ranks, timeout_s=600)
        killer.join(timeout=5)
        if any(result.exit_code != -signal.SIGKILL for result in done):
            found.problems.append("\n".join(result.output[-1500:] for result in done))
            break
        newest = folder.committed()[-1]
        if problem := find_problem(folder.step(newest)):
            found.problems.append(f"step {newest}: {problem}")
        if (results / "damaged").exists():
            found.problems.append((results / "damaged").read_text())
    metrics = RunDirectory(results, "default", "try").metrics.read_text().splitlines()
    lines = [json.loads(line) for line in metrics if line.endswith("}")]
    found.problems += [line["text"] for line in lines if line.get("name") == "checkpoint skipped"]
    return found
