"""Runs whose losses disagree are not compared, whatever else is equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.judging.same_training import FIELD
from stratlab.compare.reading.comparison_folder import load_runs
from tests.stratlab.example_run import build_run_dir, write_lines


def shift_losses(run: Path, percent: float) -> None:
    """Every loss, by this share of the mean of the first 20."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["kind"] == "train"]
    mean = sum(line["loss"] for line in train[:20]) / 20
    for line in train:
        line["loss"] += percent / 100 * mean
    write_lines(run / "metrics.jsonl", lines)


def report_of(root: Path, percents: dict[str, float], **changes: Any) -> dict[str, Any]:
    for name, percent in percents.items():
        run = build_run_dir(root, name, name.partition("-")[0], device="cuda", hosts=["n"], **changes)
        shift_losses(run, percent)
    return compare(load_runs(root))


def test_a_winner_is_not_named_over_losses_that_disagree(tmp_path: Path) -> None:
    report = report_of(tmp_path, {"ddp": 0.0, "fsdp": 3.0, "zero2": 0.0})
    assert report["fairness"]["verdict"] == "not comparable"
    assert report["fairness"]["reason"] == f"the runs differ in {FIELD}"
    assert set(report["winners"].values()) == {None}
    (entry,) = report["fairness"]["differences"]
    assert (entry["field"], entry["matters"]) == (FIELD, True)
    assert entry["values"] == {"ddp": "as ddp", "fsdp": "as fsdp", "zero2": "as ddp"}
    assert "ddp and fsdp are up to 3 % apart and may be 0.01 % (the gate of fp32)" in entry["why"]
    assert report["fairness"]["groups"] == [["ddp", "zero2"], ["fsdp"]]
    assert [group["runs"] for group in report["group_winners"]] == [["ddp", "zero2"]]
    (pair,) = [p for p in report["attribution"]["pairs"] if "fsdp" in (p["run"], p["baseline"])]
    assert pair["sentence"].startswith(f"Not comparable, no finding: they differ in {FIELD}.")


@pytest.mark.parametrize(
    ("precision", "within", "outside"),
    [("fp32", 0.009, 0.012), ("bf16", 0.9, 1.2), ("fp16", 0.9, 1.2), ("bf16_native", 1.9, 2.2)],
)
def test_the_gate_is_that_of_the_precision(
    tmp_path: Path, precision: str, within: float, outside: float
) -> None:
    report = report_of(tmp_path / "a", {"ddp": 0.0, "fsdp": within}, precision=precision)
    assert report["fairness"]["verdict"] == "comparable"
    report = report_of(tmp_path / "b", {"ddp": 0.0, "fsdp": outside}, precision=precision)
    assert report["fairness"]["verdict"] == "not comparable"


@pytest.mark.parametrize(
    ("repeat", "other", "verdict"),
    [
        (0.03, 0.05, "comparable"),  # twice what the repeats differ by is 0.06
        (0.03, 0.10, "not comparable"),
        (1.0, 0.05, "not comparable"),  # that far apart, repeats are no noise but a fault
    ],
)
def test_repeats_say_what_chance_does(tmp_path: Path, repeat: float, other: float, verdict: str) -> None:
    report = report_of(tmp_path, {"ddp-1": 0.0, "ddp-2": repeat, "fsdp": other})
    assert report["fairness"]["verdict"] == verdict
    said = {pair["allowed_by"] for pair in report["loss_agreement"]["pairs"]}
    assert said == {"the gate of fp32" if repeat == 1.0 else "2 times the distance of repeats"}


def test_losses_that_nobody_recorded_are_not_equal(tmp_path: Path) -> None:
    for name in ("ddp", "fsdp"):
        run = build_run_dir(tmp_path, name, name, device="cuda", hosts=["n"])
        (run / "metrics.jsonl").unlink()
    report = compare(load_runs(tmp_path))
    (entry,) = [e for e in report["fairness"]["differences"] if e["matters"]]
    assert entry["field"] == FIELD and entry["why"] == "not known of ddp and fsdp"


def test_another_seed_is_not_asked_for_the_same_losses(tmp_path: Path) -> None:
    for seed in (0, 1):
        for name in ("ddp", "fsdp"):
            run = build_run_dir(tmp_path, f"{name}-{seed}", name, device="cuda", hosts=["n"], seed=seed)
            shift_losses(run, 5.0 * seed)
    report = compare(load_runs(tmp_path))
    assert [e["field"] for e in report["fairness"]["differences"] if e["matters"]] == ["seed"]
    assert report["fairness"]["groups"] == [["ddp-0", "fsdp-0"], ["ddp-1", "fsdp-1"]]
    agrees = {tuple(pair["runs"]): pair["agrees"] for pair in report["loss_agreement"]["pairs"]}
    assert agrees[("ddp-0", "fsdp-0")] is True and agrees[("ddp-0", "fsdp-1")] is None


def test_nobody_is_let_in_by_a_chain_of_neighbours(tmp_path: Path) -> None:
    report = report_of(tmp_path / "a", {"ddp": 0.0, "fsdp": 0.008, "zero2": 0.016})
    assert report["fairness"]["groups"][0] == [
        "ddp",
        "fsdp",
        "zero2",
    ]  # both agree with fsdp, the one in the middle
    report = report_of(tmp_path / "b", {"ddp": 0.0, "fsdp": 0.008, "zero2": 0.016, "hsdp": 0.024})
    assert [len(group) for group in report["fairness"]["groups"]] == [3, 1]
