"""What the traces have nothing to say about is one line at the end of the page."""

from __future__ import annotations

from pathlib import Path

from stratlab.compare.comparison import compare
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.measured import build_traces
from tests.stratlab.example_run import build_run_dir


def test_analyses_of_hta_that_are_all_unsupported_are_one_line(tmp_path: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "demo", strategy, strategy, hosts=["n"])
    rows = compare(load_runs(tmp_path / "demo"))["runs"]
    analysis = {"analysis": "idle_time", "status": "unsupported", "reason": "no GPU events"}
    for row in rows:
        row["hta"] = [analysis]
    traces, hta = build_traces(rows)
    assert "Holistic" not in traces.html and not hta.html
    assert hta.nothing == "unsupported by the traces of all runs"
    rows[0]["hta"] = [analysis, analysis | {"status": "ok"}]
    (traces,) = build_traces(rows)
    assert "Holistic Trace Analysis: what ran" in traces.html


def test_without_analysed_traces_there_is_no_section(tmp_path: Path) -> None:
    build_run_dir(tmp_path / "demo", "ddp", "ddp", hosts=["n"], analysis=False)
    (traces,) = build_traces(compare(load_runs(tmp_path / "demo"))["runs"])
    assert traces.nothing == "no run has analysed traces" and not traces.html
