from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.reading.comparison_folder import load_runs
from tests.stratlab.example_run import build_run_dir, write_lines


def _set_losses(run: Path, losses: dict[int, float], first_norm: float | None) -> None:
    lines = [{"t": step, "kind": "train", "step": step, "loss": loss} for step, loss in losses.items()]
    if first_norm is not None:
        lines[0]["grad_norm"] = first_norm
    write_lines(run / "metrics.jsonl", lines)


def test_the_differences_are_exact(tmp_path: Path) -> None:
    first = {step: 2.0 for step in range(1, 41)}
    second = first | {3: 2.25, 20: 1.5, 21: 9.0}  # step 21 is behind the first 20
    third = {step: 2.0 for step in range(2, 11)}
    values = {"a": (first, 1.0), "b": (second, 1.125), "c": (third, None)}
    for name, (losses, norm) in values.items():
        _set_losses(build_run_dir(tmp_path, name, "ddp"), losses, norm)
    found = compare(load_runs(tmp_path))["loss_agreement"]
    judged = [
        {name: pair.pop(name) for name in ("agrees", "allowed_pct", "allowed_by")} for pair in found["pairs"]
    ]
    assert [entry["agrees"] for entry in judged] == [False, True, False]
    assert {entry["allowed_pct"] for entry in judged} == {0.01}
    assert found == {
        "first_steps": 20,
        "pairs": [
            {
                "runs": ["a", "b"],
                "steps": 20,
                "max_abs_loss_difference": 0.5,
                "max_rel_loss_difference": 0.25,
                "loss_difference_pct": pytest.approx(100 * 0.5 / ((20 * 2.0 + 39.75) / 40)),
                "first_grad_norm_difference": 0.125,
            },
            {
                "runs": ["a", "c"],
                "steps": 9,
                "max_abs_loss_difference": 0.0,
                "max_rel_loss_difference": 0.0,
                "loss_difference_pct": 0.0,
                "first_grad_norm_difference": None,
            },
            {
                "runs": ["b", "c"],
                "steps": 9,
                "max_abs_loss_difference": 0.25,
                "max_rel_loss_difference": pytest.approx(1 / 9),
                "loss_difference_pct": pytest.approx(100 * 0.25 / ((9 * 2.0 + 18.25) / 18)),
                "first_grad_norm_difference": None,
            },
        ],
        "max_abs_loss_difference": 0.5,
        "max_grad_norm_difference": 0.125,
    }
    json.dumps(found, allow_nan=False)


def test_without_common_steps_nothing_is_claimed(tmp_path: Path) -> None:
    for name, steps in (("a", (1, 2)), ("b", (30, 31))):
        _set_losses(build_run_dir(tmp_path, name, "ddp"), dict.fromkeys(steps, 1.0), None)
    found = compare(load_runs(tmp_path))["loss_agreement"]
    assert found["pairs"][0]["steps"] == 0 and found["max_abs_loss_difference"] is None


def test_a_run_that_did_not_finish_is_in_no_pair(tmp_path: Path) -> None:
    for name, status in (("a", "finished"), ("b", "failed")):
        build_run_dir(tmp_path, name, "ddp", status=status)
    assert compare(load_runs(tmp_path))["loss_agreement"]["pairs"] == []
