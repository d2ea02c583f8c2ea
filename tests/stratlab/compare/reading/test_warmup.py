from __future__ import annotations

import inspect
import json
import math
import random
from pathlib import Path

import pytest

from stratlab import cli
from stratlab.compare.comparison import compare
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.reading.warmup import RULE, TOO_FEW, find_cut
from tests.stratlab.example_run import build_run_dir

STEADY_MS = 10.0


def build_times(steps: int, warm_up_ms: list[float], seed: int, noise_ms: float = 0.3) -> list[float]:
    """Steady step times with noise, and what warming up adds to the first ones."""
    draw = random.Random(seed)
    added = warm_up_ms + [0.0] * steps
    return [STEADY_MS + added[i] + draw.gauss(0, noise_ms) for i in range(steps)]


@pytest.mark.parametrize("seed", range(10))
def test_a_step_in_the_times_is_cut_where_it_is(seed: int) -> None:
    cut = find_cut(build_times(200, [8.0] * 30, seed))
    assert 30 <= cut.steps <= 75 and cut.settled and cut.method == RULE


@pytest.mark.parametrize("seed", range(10))
def test_an_exponential_warm_up_is_cut_where_it_has_sunk_into_the_noise(seed: int) -> None:
    warm_up = [20.0 * math.exp(-step / 10) for step in range(200)]
    times = build_times(200, warm_up, seed)
    cut = find_cut(times)
    assert 20 <= cut.steps <= 70 and cut.settled
    mean = sum(times[cut.steps :]) / (200 - cut.steps)
    assert mean == pytest.approx(STEADY_MS, abs=0.2)
    assert sum(times[5:]) / 195 > STEADY_MS + 0.5, "the first 5 steps alone would not have been enough"


def test_without_warm_up_little_is_left_out() -> None:
    cuts = [find_cut(build_times(200, [], seed)).steps for seed in range(50)]
    assert min(cuts) == 5
    assert sorted(cuts)[25] <= 40  # of noise alone the rule cuts something now and then


@pytest.mark.parametrize("seed", range(5))
def test_never_less_than_5_and_never_more_than_half(seed: int) -> None:
    draw = random.Random(seed)
    for steps in range(1, 150):
        cut = find_cut([draw.expovariate(0.1) for _ in range(steps)])
        assert min(5, steps) <= cut.steps <= max(steps // 2, min(5, steps))


def test_times_that_never_settle_are_said_to() -> None:
    cut = find_cut([100.0 - step / 2 for step in range(100)])
    assert cut.steps == 50 and not cut.settled
    assert find_cut([STEADY_MS] * 100).settled


def test_too_few_steps_for_the_rule() -> None:
    assert find_cut([1.0] * 12) == find_cut([9.0] * 5 + [1.0] * 7)
    cut = find_cut([1.0] * 12)
    assert (cut.steps, cut.method, cut.settled) == (5, TOO_FEW, False)


def test_a_batch_is_five_steps() -> None:
    """By hand: batch means 9, 9, 1, 2, 1, 2; variance by number of batches 9.2 / 5, 0.25 / 4, 0.2222 / 3."""
    times = [9.0] * 10 + [1.0] * 5 + [2.0] * 5 + [1.0] * 5 + [2.0] * 5
    assert find_cut(times).steps == 10


def plant_times(run: Path, warm_up_ms: float, until: int) -> None:
    """Makes the first steps of a run directory slower, in metrics.jsonl only."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "train" and line["step"] <= until:
            line["step_time_ms"] += warm_up_ms
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_comparison_counts_what_is_behind_the_warm_up(tmp_path: Path) -> None:
    for name in ("ddp", "fsdp"):
        run = build_run_dir(tmp_path / "demo", name, name, hosts=["n"], samples_per_s=6400.0)
    plant_times(run, 50.0, until=18)
    report = compare(load_runs(tmp_path / "demo"))
    ddp, fsdp = report["runs"]
    for row in (ddp, fsdp):  # 64 samples in 10 ms, whatever the summary says
        assert row["step_time_ms_p50"] == row["step_time_ms_mean"] == pytest.approx(10.0)
        assert row["step_time_ms_p95"] == pytest.approx(10.0)
        assert row["samples_per_s"] == pytest.approx(6400.0)
        assert row["step_times_from"] == "metrics.jsonl"
    # 56 steps are neither profiled (10 to 12) nor the one after; those up to step 18 among them are 14
    assert report["warmup"]["fsdp"] == {"steps": 16, "first_step": 21, "method": RULE, "settled": True}
    assert fsdp["measured_steps"] == 40 and fsdp["warmup_steps"] == 16
    assert report["warmup"]["ddp"]["first_step"] == 7 and ddp["measured_steps"] == 50


def test_the_run_with_the_shorter_median_step_has_the_higher_throughput(tmp_path: Path) -> None:
    """One step in which the machine was away makes the mean of ddp the longer one, and its median no longer."""
    for name, speed in (("ddp", 6400.0), ("fsdp", 6300.0)):
        run = build_run_dir(tmp_path / "demo", name, name, hosts=["n"], samples_per_s=speed)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            if name == "ddp" and line["kind"] == "train" and line["step"] == 50:
                line["step_time_ms"] += 5000.0
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ddp, fsdp = compare(load_runs(tmp_path / "demo"))["runs"]
    assert ddp["step_time_ms_mean"] > fsdp["step_time_ms_mean"]
    assert ddp["step_time_ms_p50"] < fsdp["step_time_ms_p50"] and ddp["samples_per_s"] > fsdp["samples_per_s"]
    assert ddp["samples_per_s"] == pytest.approx(6400.0)


def test_without_metrics_the_summary_stands_in_and_says_so(tmp_path: Path) -> None:
    run = build_run_dir(tmp_path / "demo", "ddp", "ddp")
    (run / "metrics.jsonl").unlink()
    row = compare(load_runs(tmp_path / "demo"))["runs"][0]
    summary = json.loads((run / "summary.json").read_text())
    assert row["step_times_from"] == "summary.json" and row["warmup"] is None
    assert row["step_time_ms_p50"] == summary["step_time_ms_p50"]
    assert row["samples_per_s"] == summary["samples_per_s"] and row["step_time_ms_mean"] is None


def test_nobody_can_pick_the_cut() -> None:
    """Neither a function nor an option takes one."""
    assert list(inspect.signature(find_cut).parameters) == ["times_ms"]
    for function in (compare, cli.compare):
        assert not [
            name for name in inspect.signature(function).parameters if "warm" in name or "cut" in name
        ]
