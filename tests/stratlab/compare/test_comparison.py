"""Rows, origin and remarks of a report, and what is no comparison at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.run_rows import FROM_SUMMARY, SUMMARY_FIELDS, TRACE_FIELDS
from stratlab.compare.run_sources import load_runs
from stratlab.run_directory.record import RunRecord
from stratlab.user_error import UserError
from tests.codes import find_codes
from tests.stratlab.compare.building import build


@pytest.fixture
def runs(tmp_path: Path) -> list[RunRecord]:
    return load_runs(build(tmp_path / "demo", ["ddp", "fsdp", "zero2"], device="cpu"))


def test_a_row_holds_the_numbers_of_the_run_and_of_its_traces(runs: list[RunRecord]) -> None:
    runs[1].analysis["phases_present"] = {"0": ["data", "forward"], "1": []}
    row = compare(runs)["runs"][1]
    summary = json.loads((runs[1].folder / "summary.json").read_text())
    trace = runs[1].analysis
    told = set(SUMMARY_FIELDS) - set(FROM_SUMMARY)  # the others are found anew: test_warmup.py
    assert {name: row[name] for name in told} == {name: summary[name] for name in told}
    assert {name: row[name] for name in TRACE_FIELDS} == {
        name: trace["mean"].get(name) for name in TRACE_FIELDS
    }
    held = ("parameter_memory_gib", "gradient_memory_gib", "optimizer_memory_gib")
    assert row["state_memory_gib"] == sum(summary[name] for name in held) and row["hta"] == trace["hta"]
    assert (row["trace_source"], row["trace_steps"], row["mlflow_run_id"]) == ("cpu", 3, "id-fsdp")
    assert row["phases_present"]["0"] == {
        "data": True,
        "forward": True,
        "backward": False,
        "optimizer": False,
    }
    runs[1].analysis.clear()
    runs[1].summary.update(comm_exposed_pct=12.5, train_loss=float("nan"))
    row = compare(runs)["runs"][1]
    assert row["comm_exposed_pct"] == 12.5, "the run's own count stands in"
    assert row["train_loss"] is None, "JSON knows no such number"
    assert row["tokens_per_s"] is row["layout"] is row["dimensions"] is row["test_perplexity"] is None
    assert row["degenerate"] is False and row["stages"] == [] and row["wire_bytes_per_axis"] == {}


def test_a_run_that_is_too_short_to_be_timed_says_so(runs: list[RunRecord]) -> None:
    before = compare(runs)["remarks"]
    runs[1].metrics[:] = [line for line in runs[1].metrics if line.get("step", 0) <= 4]
    runs[1].summary.update(steps=4, step_time_ms_p50=None, measured_steps=0)
    (said,) = [remark for remark in compare(runs)["remarks"] if remark not in before]
    assert "fsdp (4 steps)" in said


def test_nothing_to_compare_is_an_error(tmp_path: Path) -> None:
    strange = RunRecord("ddp", tmp_path, "not a run", "has no artifacts")
    for runs in ([], [strange]):
        with pytest.raises(UserError) as refused:
            compare(runs)
        assert find_codes(refused.value) == ["SL-nothing-to-compare"]
        assert all(run.ending in str(refused.value) for run in runs)
