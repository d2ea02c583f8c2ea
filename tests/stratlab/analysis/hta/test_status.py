"""Holistic Trace Analysis: its numbers are ours, and every analysis says how it went."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stratlab import cli
from stratlab.analysis import hta_bridge
from stratlab.analysis.hta_analyses import ANALYSES, Analysis, Scene, estimate_bytes
from stratlab.analysis.hta_bridge import HtaLimits, HtaRun, HtaStatus, run_hta
from stratlab.analysis.hta_worker import run_analysis
from tests.codes import find_codes
from tests.stratlab.simulated import team
from tests.stratlab.simulated.small import build_gpu_trace, write_run

MIB = 1 << 20


def read_table(path: Path) -> list[dict[str, str]]:
    with open(path) as file:
        return list(csv.DictReader(file))


def test_tables_hold_the_numbers_of_the_known_answer(tmp_path: Path) -> None:
    """Through the process, its environment and the CSV files, of the two ranks of four for which there is memory."""
    truth = team.simulate(tmp_path / "traces", team.Scene(ranks=4, origin_ns=1_000_000_000))
    before = {path: path.read_bytes() for path in (tmp_path / "traces").iterdir()}
    limits = HtaLimits(memory_bytes=estimate_bytes([100 * MIB] * 2))
    run = run_hta(truth.files, True, dict.fromkeys(truth.files, 100 * MIB), tmp_path, limits)
    assert run.ranks == [0, 1] and find_codes(run.reason) == ["SL-hta-some-ranks"]
    statuses = {s.analysis: s.status for s in run.statuses}
    assert statuses["temporal_breakdown"] == statuses["comm_comp_overlap"] == "ok"
    rows = {int(row["rank"]): row for row in read_table(tmp_path / "temporal_breakdown.csv")}
    overlaps = {int(row["rank"]): row for row in read_table(tmp_path / "comm_comp_overlap.csv")}
    assert list(rows) == [0, 1]
    for rank in rows:
        steps = [step for (of, _), step in truth.steps.items() if of == rank]
        compute_us = sum(step.compute for step in steps) / 1e3
        assert float(rows[rank]["compute_time(us)"]) == pytest.approx(compute_us, rel=1e-6)
        overlap_pct = 100 * sum(s.comm_overlap for s in steps) / sum(s.comm for s in steps)
        assert float(overlaps[rank]["comp_comm_overlap_pctg"]) == pytest.approx(overlap_pct, abs=0.006)
    assert {path: path.read_bytes() for path in (tmp_path / "traces").iterdir()} == before


def test_every_analysis_has_a_status_on_gpu_traces(gpu_run: Path, gpu_report: dict[str, Any]) -> None:
    tables = gpu_run / "analysis" / "tables" / "hta"
    statuses = {row["analysis"]: row for row in gpu_report["hta"]}
    assert list(statuses) == [analysis.name for analysis in ANALYSES]
    assert [name for name, row in statuses.items() if row["status"] == "failed"] == []
    assert statuses["memory_bandwidth_summary"]["status"] == "ok"
    assert find_codes(statuses["potential_stragglers"]["reason"]) == ["SL-hta-nccl-names"]
    for name, row in statuses.items():
        assert (row["status"] == "ok") == bool(row["tables"])
        assert row["reason"] or row["status"] == "ok", name
        for table in row["tables"]:
            assert read_table(tables / table), table
    assert len(read_table(tables / "profiler_steps.csv")) == 3, "the last one as well"
    rows = read_table(tables / "gpu_kernel_breakdown_kernels.csv")
    (gemm,) = [r for r in rows if r["name"] == "sm90_gemm<float>" and r["rank"] == "0"]
    assert (float(gemm["sum (us)"]), float(gemm["mean (us)"])) == (pytest.approx(900), pytest.approx(300))
    sequences = [
        {row["kernel_sequence"] for row in read_table(tables / f"aten_op_kernels_and_delay_rank{rank}.csv")}
        for rank in (0, 1)
    ]
    assert sequences[0] == sequences[1], "each rank is counted by itself"
    html = (gpu_run / "analysis" / "report.html").read_text()
    assert "<details><summary>temporal_breakdown</summary>" in html


def test_status_of_an_analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    def crash(scene: Scene) -> Any:
        raise KeyError("thread_id")

    def run(analysis: Analysis, has_gpu: bool = True) -> tuple[str, str]:
        scene = Scene(hta=None, ranks=[0], has_gpu=has_gpu, names=["gemm"], scratch="")
        outcome = run_analysis(analysis, scene, tmp_path)
        return outcome["status"], outcome["reason"]

    frame = pd.DataFrame({"a": [1.5]})
    assert run(Analysis("good", lambda scene: frame)) == ("ok", "")
    assert (tmp_path / "good.csv").read_text() == "a\n1.5\n"
    assert run(Analysis("crash", crash)) == ("failed", "KeyError: 'thread_id'")
    for empty in (None, pd.DataFrame(), pd.DataFrame({"a": [float("nan")]}), {"x": None}):
        status, reason = run(Analysis("empty", lambda scene, e=empty: e))
        assert status == "unsupported" and find_codes(reason) == ["SL-hta-nothing"]
    # on CPU traces an analysis for GPUs is not even called: its crash says nothing
    assert run(Analysis("crash", crash), has_gpu=False)[0] == "unsupported"
    assert run(Analysis("no", crash, obstacle=lambda scene: "why not")) == ("unsupported", "why not")
    monkeypatch.setattr("stratlab.analysis.hta_worker.MOST_ROWS", 2)
    status, reason = run(Analysis("big", lambda scene: pd.DataFrame({"a": [1, 2, 3]})))
    assert status == "ok" and find_codes(reason) == ["SL-hta-rows-cut"]
    assert len(read_table(tmp_path / "big.csv")) == 2


ONE_OF_THREE = [
    HtaStatus("a", "failed", "KeyError"),
    HtaStatus("b", "ok"),
    HtaStatus("c", "unsupported", "x"),
]


@pytest.mark.parametrize(
    ("statuses", "exit_code"), [(ONE_OF_THREE[:1], 1), (ONE_OF_THREE, 0), (ONE_OF_THREE[2:], 0)]
)
def test_nothing_but_failures_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statuses: list[HtaStatus], exit_code: int
) -> None:
    """The report is written, and the exit code says that something is missing in it."""
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    monkeypatch.setattr("stratlab.analysis.hta_bridge.run_hta", lambda *_: HtaRun(statuses, [0]))
    done = CliRunner().invoke(cli.app, ["analyze", str(run)])
    assert done.exit_code == exit_code and ("SL-hta-all-failed" in done.output) == bool(exit_code)
    assert ("a: KeyError" in done.output) == (statuses[0].status == "failed")
    assert (run / "analysis" / "report.html").is_file()


def test_where_it_is_not_installed_it_does_not_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a bare GPU machine, say, which has our part of the analysis alone."""
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    monkeypatch.setattr(hta_bridge, "find_spec", lambda name: None if name == "plotly" else name)
    assert CliRunner().invoke(cli.app, ["analyze", str(run)]).exit_code == 0
    rows = json.loads((run / "analysis" / "report.json").read_text())["hta"]
    assert len(rows) == len(ANALYSES) and {row["status"] for row in rows} == {"unsupported"}
    assert find_codes(rows[0]["reason"]) == ["SL-hta-not-installed"] and "plotly" in rows[0]["reason"]


def test_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    path = build_gpu_trace(0).write(tmp_path / "rank0_trace.json")
    statuses = run_hta({0: path}, True, {0: MIB}, tmp_path, HtaLimits(timeout_s=0.3)).statuses
    assert {(s.status, *find_codes(s.reason)) for s in statuses} == {("failed", "SL-hta-timeout")}


def test_process_that_dies_says_so_and_keeps_what_was_done(tmp_path: Path) -> None:
    """A truncated file ends HTA as a whole; such files do not get this far, but others may do the same."""
    (tmp_path / "rank0_trace.json").write_text('{"traceEvents": [')
    statuses = run_hta({0: tmp_path / "rank0_trace.json"}, True, {0: MIB}, tmp_path).statuses
    assert {s.status for s in statuses} == {"failed"}
    assert "SL-hta-process-ended" in find_codes(statuses[0].reason)
    row = {"analysis": "profiler_steps", "status": "ok", "reason": "", "tables": ["a.csv"], "seconds": 1.5}
    (tmp_path / "status.jsonl").write_text(json.dumps(row) + "\n")
    first, second = hta_bridge._read_statuses(tmp_path / "status.jsonl", "killed")[:2]
    assert (first.status, first.tables, first.seconds) == ("ok", ("a.csv",), 1.5)
    assert (second.status, second.reason) == ("failed", "killed")
