"""Rows, origin and remarks of a report, and what is no comparison at all."""

import html
import json
from pathlib import Path
from typing import Any

import pytest

from stratlab import UserError
from stratlab.compare.comparison import compare
from stratlab.compare.report_files import render_page
from stratlab.compare.run_rows import SUMMARY_FIELDS, TRACE_FIELDS
from stratlab.compare.run_sources import load_comparisons, load_runs
from stratlab.compare.summary_view import build_markdown, describe
from stratlab.compare.terminal_view import list_answers
from stratlab.run_directory.record import NAMES, RunRecord
from tests.codes import find_codes
from tests.stratlab.compare.building import build


@pytest.fixture
def runs(tmp_path: Path) -> list[RunRecord]:
    return load_runs(build(tmp_path / "demo", ["ddp", "fsdp", "zero2"], device="cpu"))


def test_a_row_holds_the_numbers_of_the_run_and_of_its_traces(runs):
    runs[1].analysis["phases_present"] = {"0": ["data", "forward"], "1": []}
    row = compare(runs)["runs"][1]
    summary = json.loads((runs[1].folder / "summary.json").read_text())
    trace = runs[1].analysis
    told = set(SUMMARY_FIELDS) - set(NAMES)  # the others follow from the steps: test_run_rows.py
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


def test_nothing_to_compare_is_an_error(tmp_path):
    strange = RunRecord("ddp", tmp_path, "not a run", "has no artifacts")
    for runs in ([], [strange]):
        with pytest.raises(UserError) as refused:
            compare(runs)
        assert find_codes(refused.value) == ["SL-nothing-to-compare"]
        assert all(run.ending in str(refused.value) for run in runs)


def of(ranks: int, speed: float, **changes: Any) -> dict[str, Any]:
    return {"world_size": ranks, "processes_per_node": ranks, "samples_per_s": speed, **changes}


def test_it_is_the_same_everywhere(tmp_path):
    runs = load_runs(build(tmp_path, {"ddp-2": of(2, 1000.0), "ddp-4": of(4, 1500.0)}))
    report = compare(runs)
    shown = "\n".join(told for _, told in list_answers(report))
    for text in (shown, render_page(report, runs), build_markdown(report), describe(report)):
        plain = html.unescape(text).replace("**", "").replace("\\", "")
        assert report["headline"]["verdict"] in plain and report["headline"]["reason"] in plain
        assert all(plain.count(said) == 1 for said in report["headline"]["answers"]), "each answer once"


def test_names_that_several_folders_have_are_told_apart(tmp_path):
    for folder, runs in (("a", ["ddp"]), ("x/a", ["ddp"]), ("b", ["ddp", "fsdp"])):
        build(tmp_path / folder, runs)

    def name(*folders: str) -> list[str]:
        return [run.name for run in load_comparisons([tmp_path / folder for folder in folders])]

    assert name("a", "b") == ["a/ddp", "b/ddp", "fsdp"]
    assert name("b", "x/a") == ["b/ddp", "fsdp", "a/ddp"]
    assert len(set(name("a", "x/a"))) == 2
    with pytest.raises(UserError) as refused:
        name("a", "b/../a")
    assert find_codes(refused.value) == ["SL-compare-twice"]
