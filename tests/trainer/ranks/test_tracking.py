"""What every rank uses reaches rank 0 inside the collective that adds up the losses, and MLflow under its own names."""

from __future__ import annotations

import json
import math

import pytest

from tests.ranks import run_ranks
from trainer.measuring.hardware import NAMES


def record(folder, images: bool) -> None:
    """Six steps of a rank with made-up system numbers; writes how many collectives there were.

    Args:
        images: each rank tells as many of its samples right as its number says.
    """
    import torch
    import torch.distributed as dist

    from trainer.engine import StepResult
    from trainer.measuring.operators import WireCounter
    from trainer.metrics.tracking import Recorder

    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def read_system() -> list[float]:
        return [math.nan if name.startswith("gpu") else rank + i / 8 for i, name in enumerate(NAMES)]

    path = folder / "metrics.jsonl" if rank == 0 else None
    measures = ("accuracy", "all") if images else ()
    recorder = Recorder(path, 1, 4, read_system=read_system, epoch_samples=16, step_measures=measures)
    with WireCounter() as wire:
        for step in range(1, 7):
            right = torch.tensor([rank, 8]) if images else None
            result = StepResult(torch.tensor(0.25 * (rank + 1)), torch.tensor(1.0), 8, measures=right)
            recorder.record_step(step, 0.1, result, (0, 0, 0, 0, 0), False)
        recorder.flush()
        recorder.flush()  # nothing is waiting: no collective and no line
    recorder.close()
    (folder / f"rank{rank}.json").write_text(json.dumps(wire.operations))
    dist.barrier()


@pytest.mark.parametrize(("ranks", "images"), [(1, False), (3, True)])
def test_every_rank_s_numbers_are_in_one_line_per_flush(ranks, images, tmp_path):
    run_ranks(lambda: record(tmp_path, images), ranks)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["kind"] == "train"]
    assert [line["loss"] for line in train] == [0.25 * ranks * (ranks + 1) / 2] * 6
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
    if not images:
        assert collectives == {}
        return
    assert collectives == {"all_reduce": [2, (6 + 2 * 6 + 2 * ranks * len(NAMES)) * 4]}
    assert {line["train_accuracy_pct"] for line in train} == {100.0 * (0 + 1 + 2) / 8}
    assert {line["train_all_pct"] for line in train} == {300.0}
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert [(line["step"], line["epoch"]) for line in epochs] == [(2, 1), (4, 2), (6, 3)]  # 8 of 16 a step
    assert {line["epoch_train_accuracy_pct"] for line in epochs} == {37.5}
