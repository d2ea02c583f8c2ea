"""Which steps count, in a process of its own: the collectives of one, the times of those that nothing disturbs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from trainer.engine import StepResult
from trainer.metrics.tracking import Recorder


@pytest.mark.parametrize(
    ("profiled", "counted"),
    [((), 3), ((2, 3, 4, 5), 6)],
)
def test_collectives_are_counted_in_one_step_from_the_third_on_that_is_not_profiled(profiled, counted):
    """Not in the first two: DDP sorts its buckets anew after the first, DeepSpeed sets itself up."""
    recorder = Recorder(None, 1, 10)
    watched = []
    for step in range(1, 11):
        with recorder.count_wire(step in profiled) as watch:
            if watch is not None:
                watched.append(step)
    assert watched == [counted] and None not in (recorder.wire, recorder.products)


def record(path: Path, profiled: tuple[int, ...] = (), steps: int = 12) -> Recorder:
    """Steps of as many ms as their number, half of the eight samples told right."""
    recorder = Recorder(path, 1, 5, step_measures=("accuracy", "quarter"))
    for step in range(1, steps + 1):
        result = StepResult(torch.tensor(0.5), torch.tensor(2.0), 8, measures=torch.tensor([4, 2]))
        taken = (step * 1_000_000, 250_000, 500_000, 0, 0)
        recorder.record_step(step, 0.125, result, taken, step in profiled)
    recorder.flush()
    recorder.close()
    return recorder


@pytest.mark.parametrize(
    ("profiled", "measured"),
    [((7, 8), [6, 10, 11, 12]), ((5,), [7, 8, 9, 10, 11, 12])],
)
def test_the_first_five_steps_those_of_a_profile_and_the_one_behind_it_do_not_count(
    tmp_path, monkeypatch, profiled, measured
):
    monkeypatch.setattr("trainer.metrics.tracking.dist.get_world_size", lambda: 1)
    recorder = record(tmp_path / "metrics.jsonl", profiled)
    assert [times[0] for times in recorder.measured] == measured
    assert recorder.work.samples == 8 * len(measured)


def test_a_line_of_a_step(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.metrics.tracking.dist.get_world_size", lambda: 1)
    record(tmp_path / "metrics.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert {name: value for name, value in lines[2].items() if name != "t"} == {
        "attempt": 1, "step": 3, "kind": "train", "loss": 0.5, "grad_norm": 2.0, "lr": 0.125, "samples": 8,
        "skipped": 0, "step_time_ms": 3.0, "data_ms": 0.25, "forward_ms": 0.5, "backward_ms": 0.0,
        "optimizer_ms": 0.0, "profiled": False, "train_accuracy_pct": 50.0,
        "train_quarter_pct": 25.0,
    }  # fmt: skip


@pytest.mark.parametrize("log_every", [4, 100])
def test_writes_are_never_further_apart_than_ten_steps(tmp_path, monkeypatch, log_every):
    """A slow rank and what is not finite are found in time, whatever the setting says."""
    monkeypatch.setattr("trainer.metrics.tracking.dist.get_world_size", lambda: 1)
    written = []
    recorder = Recorder(
        tmp_path / "metrics.jsonl", 1, log_every, on_flush=lambda line: written.append(line["step"])
    )
    for step in range(1, 61):
        result = StepResult(torch.tensor(0.5), torch.tensor(2.0), 8)
        recorder.record_step(step, 0.125, result, (1_000_000, 250_000, 500_000, 0, 0), False)
    recorder.flush()
    recorder.close()
    assert max(after - before for before, after in pairwise([0, *written])) <= min(log_every, 10)
    assert written[-1] == 60
