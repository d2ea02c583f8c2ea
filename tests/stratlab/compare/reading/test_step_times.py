"""Which lines of metrics.jsonl count, and what they add up to, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.run_rows import build_step_times
from stratlab.run_directory.record import RunRecord

SUMMARY = {
    "world_size": 2, "peak_flops_per_device": 1e6, "flops_per_sample": 500.0, "flops_per_token_literature": 50.0,
    "flops_per_useful_token": 40.0, "step_time_ms_p50": 7.0, "samples_per_s": 3.0,
}  # fmt: skip
PHASES = {"data_ms": 1.0, "forward_ms": 2.0, "backward_ms": 4.0, "optimizer_ms": 8.0}


def line(step: int, ms: float, **more: Any) -> dict[str, Any]:
    counts = {"samples": 4, "tokens": 40, "useful_tokens": 30}
    return {"kind": "train", "attempt": 1, "step": step, "step_time_ms": ms, **counts, **PHASES, **more}


def read(*lines: dict[str, Any], status: Any = "finished", **summary: Any) -> dict[str, Any]:
    """Of a run whose first five steps, a second each, are its warm-up."""
    first = [line(step, 1000.0) for step in range(1, 6)]
    return build_step_times(
        RunRecord("a", Path("a"), status, metrics=[*first, *lines], summary=SUMMARY | summary)
    )


def test_rates_are_those_of_the_median_step() -> None:
    found = read(line(6, 10.0), line(7, 20.0, forward_ms=3.0), line(8, 90.0, forward_ms=100.0))
    assert found["warmup"]["first_step"] == 6 and found["step_times_from"] == "metrics.jsonl"
    wanted = {
        "measured_steps": 3, "step_time_ms_p50": 20, "step_time_ms_mean": 40, "step_time_ms_p95": 90,
        "samples_per_s": 200, "tokens_per_s": 2000, "useful_tokens_per_s": 1500, "useful_tokens_pct": 75,
        "mfu_pct": 5, "mfu_literature_pct": 5, "mfu_useful_pct": 3,
        "data_ms_p50": 1, "forward_ms_p50": 3, "backward_ms_p50": 4, "optimizer_ms_p50": 8,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("lines", "steps", "median"),
    [
        ([line(6, 10.0), line(7, 90.0), line(6, 30.0, attempt=2), line(7, 50.0, attempt=2)], 2, 40),
        ([line(6, 10.0), line(7, 900.0, profiled=True), line(8, 800.0), line(9, 20.0)], 2, 15),
        ([line(6, 10.0), line(7, 900.0, kind="validation"), line(8, 20.0)], 2, 15),
        ([line(6, 10.0), line(7, 900.0) | {"step_time_ms": None}, line(8, 20.0)], 2, 15),
        ([line(8, 30.0), line(6, 10.0), line(7, 20.0)], 3, 20),
    ],
    ids=["made twice", "profiled", "no training", "no time", "in another order"],
)
def test_which_steps_count(lines: list[dict[str, Any]], steps: int, median: float) -> None:
    """Of a step that an attempt lost and the next one made again, the second; none that a profile slowed down."""
    found = read(*lines)
    assert (found["measured_steps"], found["step_time_ms_p50"]) == (steps, median)


@pytest.mark.parametrize(
    ("missing", "unknown"),
    [
        ("samples", {"samples_per_s", "mfu_pct"}),
        ("tokens", {"tokens_per_s", "useful_tokens_pct", "mfu_literature_pct"}),
        ("useful_tokens", {"useful_tokens_per_s", "useful_tokens_pct", "mfu_useful_pct"}),
        ("forward_ms", {"forward_ms_p50"}),
    ],
)
def test_what_one_step_does_not_tell_is_not_known(missing: str, unknown: set[str]) -> None:
    found = read(line(6, 10.0), line(7, 20.0, **{missing: None}))
    assert {name for name, value in found.items() if value is None} == unknown


@pytest.mark.parametrize(("status", "metrics"), [("failed", [line(6, 10.0)]), ("finished", [])])
def test_else_the_summary_is_what_there_is(status: str, metrics: list[dict[str, Any]]) -> None:
    found = read(*metrics, status=status)
    assert (found["step_times_from"], found["step_time_ms_p50"], found["samples_per_s"]) == (
        "summary.json",
        7,
        3,
    )
    assert found.get("warmup") is found.get("step_time_ms_mean") is found["mfu_pct"] is None
    assert read(status="failed", step_time_ms_p50=None)["step_times_from"] is None
