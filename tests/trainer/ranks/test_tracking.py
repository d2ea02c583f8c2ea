"""What every rank uses reaches rank 0 inside the collective that adds up the losses, and MLflow under its own names."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ranks import run_ranks
from tests.trainer.launch.test_tensorboard import expected
from tests.trainer.record.test_event_file import read
from trainer.launch.sender import line_points
from trainer.measuring.gpu import NAMES
from trainer.record.run_directory import RunDirectory


def record(folder, steps: int = 6, log_every: int = 4, images: bool = False) -> None:
    """A rank with made-up system numbers; writes how many collectives there were.

    Args:
        images: each rank tells as many of its samples right as its number says.
    """
    import torch
    import torch.distributed as dist

    from trainer.engine import StepResult
    from trainer.measuring.wire import WireCounter
    from trainer.outcome.tracking import Recorder

    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def read_system() -> list[float]:
        return [math.nan if name.startswith("gpu") else rank + i / 8 for i, name in enumerate(NAMES)]

    path = folder / "metrics.jsonl" if rank == 0 else None
    measures = ("accuracy", "all") if images else ()
    recorder = Recorder(path, 1, log_every, read_system=read_system, epoch_samples=16, step_measures=measures)
    with WireCounter() as wire:
        for step in range(1, steps + 1):
            loss = torch.tensor(0.25 * (rank + 1))
            right = torch.tensor([rank, 8]) if images else None
            result = StepResult(loss, torch.tensor(1.0), 8, measures=right)
            recorder.record_step(step, 0.1, result, (0, 0, 0, 0, 0), False)
        recorder.flush()
        recorder.flush()  # nothing is waiting: no collective and no line
    recorder.close()
    (folder / f"rank{rank}.json").write_text(json.dumps(wire.operations))
    dist.barrier()


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_rank_s_numbers_are_in_one_line_per_flush(ranks, tmp_path):
    run_ranks(lambda: record(tmp_path), ranks)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines if line["kind"] == "train"] == [0.25 * ranks * (ranks + 1) / 2] * 6
    system = [line for line in lines if line["kind"] == "system"]
    assert [line["step"] for line in system] == [4, 6]
    expected = {
        f"rank{rank}_{name}": rank + i / 8
        for rank in range(ranks)
        for i, name in enumerate(NAMES)
        if not name.startswith("gpu")
    }
    assert {key: value for key, value in system[0].items() if key.startswith("rank")} == expected
    collectives = json.loads((tmp_path / "rank0.json").read_text())
    assert collectives == ({} if ranks == 1 else {"all_reduce": [2, (6 + 2 * ranks * len(NAMES)) * 4]})


def test_what_the_ranks_tell_right_adds_up_in_the_same_collective(tmp_path):
    run_ranks(lambda: record(tmp_path, images=True), 3)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["kind"] == "train"]
    assert {line["train_accuracy_pct"] for line in train} == {100.0 * (0 + 1 + 2) / 8}
    assert {line["train_all_pct"] for line in train} == {100.0 * 3}
    assert {line["loss"] for line in train} == {0.25 * 6}
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert [(line["step"], line["epoch"]) for line in epochs] == [
        (2, 1),
        (4, 2),
        (6, 3),
    ]  # 16 samples, 8 a step
    assert {line["epoch_train_accuracy_pct"] for line in epochs} == {37.5}
    collectives = json.loads((tmp_path / "rank0.json").read_text())
    assert collectives == {"all_reduce": [2, (6 + 2 * 6 + 2 * 3 * len(NAMES)) * 4]}


def test_mlflow_gets_them_under_system():
    line = {"t": 1.5, "attempt": 1, "step": 3, "kind": "system", "rank12_gpu_power_w": 300.0, "other": 1}
    assert [(p["key"], p["value"]) for p in line_points(line)] == [
        ("system/rank12/gpu_power_w", 300.0),
        ("other", 1),
    ]
    assert [p["key"] for p in line_points(line | {"kind": "train"})] == ["rank12_gpu_power_w", "other"]


def test_a_line_of_very_many_ranks_is_sent_in_batches(tmp_path):
    from trainer.launch.sender import send_new_lines
    from trainer.record.run_directory import RunDirectory

    folder = RunDirectory(tmp_path, "wide", "run")
    folder.create()
    values = {f"rank{rank}_host_memory_gib": 1.0 for rank in range(2500)}
    line = json.dumps({"t": 1.0, "attempt": 1, "step": 1, "kind": "system", **values}) + "\n"
    folder.metrics.write_text(line * 2)
    sent: list[int] = []

    class Server:
        """A stand-in that counts."""

        def log_batch(self, run_id, points):
            sent.append(len(points))

    send_new_lines(folder, Server(), "id")
    assert sum(sent) == 5000 and max(sent) <= 1000
    assert int(folder.sent.read_text()) == os.path.getsize(folder.metrics)


def test_the_setting_leaves_tensorboards_file_with_every_number(tmp_path: Path) -> None:
    env = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "TRAINER_RUN": "try",
        "TRAINER_RESULTS": str(tmp_path),
        "TRAINER_TENSORBOARD": "true",
        "TRAINER_MODEL": "cnn",
        "TRAINER_IMAGE_SIZE": "8",
        "TRAINER_STEPS": "12",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "trainer"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    folder = RunDirectory(tmp_path, "default", "try")
    assert read(folder.tensorboard) == expected(folder)
    assert {"loss", "test_accuracy_pct", "system/rank0/host_memory_gib"} <= expected(folder).keys()
