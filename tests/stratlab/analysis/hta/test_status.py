"""Holistic Trace Analysis: its numbers are ours, and every analysis says how it went."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stratlab import cli
from stratlab.analysis.analyze import analyze_run
from stratlab.analysis.hta import bridge as hta_bridge
from stratlab.analysis.hta.analyses import ANALYSES, Analysis, Scene
from stratlab.analysis.hta.bridge import HtaLimits, HtaRun, HtaStatus, run_hta
from stratlab.analysis.hta.worker import run_analysis
from tests.stratlab.simulated import team
from tests.stratlab.simulated.small import build_gpu_trace, write_run

SMALL = {0: 1 << 20, 1: 1 << 20}  # unpacked sizes


def read_table(path: Path) -> list[dict[str, str]]:
    with open(path) as file:
        return list(csv.DictReader(file))


def test_tables_hold_the_numbers_of_the_known_answer(tmp_path: Path) -> None:
    """Through the process, its environment and the CSV files; test_equality.py compares the rest."""
    truth = team.simulate(tmp_path / "traces", team.Scene(origin_ns=1_000_000_000))
    before = {path: path.read_bytes() for path in truth.files.values()}
    statuses = {s.analysis: s.status for s in run_hta(truth.files, True, SMALL, tmp_path).statuses}
    assert statuses["temporal_breakdown"] == statuses["comm_comp_overlap"] == "ok"
    rows = {int(row["rank"]): row for row in read_table(tmp_path / "temporal_breakdown.csv")}
    overlaps = {int(row["rank"]): row for row in read_table(tmp_path / "comm_comp_overlap.csv")}
    for rank in truth.files:
        steps = [step for (of, _), step in truth.steps.items() if of == rank]
        compute_us = sum(step.compute for step in steps) / 1e3
        assert float(rows[rank]["compute_time(us)"]) == pytest.approx(compute_us, rel=1e-6)
        overlap_pct = 100 * sum(s.comm_overlap for s in steps) / sum(s.comm for s in steps)
        assert float(overlaps[rank]["comp_comm_overlap_pctg"]) == pytest.approx(overlap_pct, abs=0.006)
    assert {path: path.read_bytes() for path in truth.files.values()} == before
    assert sorted(p.name for p in (tmp_path / "traces").iterdir()) == ["rank0_trace.json", "rank1_trace.json"]


def test_every_analysis_has_a_status_on_gpu_traces(gpu_run: Path, gpu_report: dict[str, Any]) -> None:
    statuses = {row["analysis"]: row for row in gpu_report["hta"]}
    assert list(statuses) == [analysis.name for analysis in ANALYSES]
    assert [name for name, row in statuses.items() if row["status"] == "failed"] == []
    assert statuses["memory_bandwidth_summary"]["status"] == "ok"
    assert "NCCL" in statuses["potential_stragglers"]["reason"]
    for name, row in statuses.items():
        assert (row["status"] == "ok") == bool(row["tables"])
        assert row["reason"] or row["status"] == "ok", name
        for table in row["tables"]:
            assert read_table(gpu_run / "analysis" / "tables" / "hta" / table), table


def test_hta_kernel_table_holds_means_not_sums(gpu_run: Path, gpu_report: dict[str, Any]) -> None:
    rows = read_table(gpu_run / "analysis" / "tables" / "hta" / "gpu_kernel_breakdown_kernels.csv")
    (gemm,) = [r for r in rows if r["name"] == "sm90_gemm<float>" and r["rank"] == "0"]
    assert (float(gemm["sum (us)"]), float(gemm["mean (us)"])) == (pytest.approx(900), pytest.approx(300))


def test_hta_counts_each_rank_by_itself(gpu_run: Path, gpu_report: dict[str, Any]) -> None:
    tables = gpu_run / "analysis" / "tables" / "hta"
    first, second = (
        {row["kernel_sequence"] for row in read_table(tables / f"aten_op_kernels_and_delay_rank{rank}.csv")}
        for rank in (0, 1)
    )
    assert first == second
    assert len(read_table(tables / "profiler_steps.csv")) == 3  # the last one as well


def test_cpu_traces_are_unsupported_not_failed(gloo_report: dict[str, Any]) -> None:
    statuses = {row["analysis"]: row["status"] for row in gloo_report["hta"]}
    assert {name for name, status in statuses.items() if status == "ok"} == {
        "profiler_steps",
        "cpu_user_annotations",
    }
    assert set(statuses.values()) == {"ok", "unsupported"}
    assert {row["reason"] for row in gloo_report["hta"] if row["status"] == "unsupported"} == {
        "needs GPU kernels, and these are CPU traces"
    }


def build_scene(has_gpu: bool = True) -> Scene:
    return Scene(hta=None, ranks=[0], has_gpu=has_gpu, names=["gemm"], scratch="")


def test_status_of_an_analysis(tmp_path: Path) -> None:
    import pandas as pd

    def crash(scene: Scene) -> Any:
        raise KeyError("thread_id")

    def run(analysis: Analysis, has_gpu: bool = True) -> tuple[str, str]:
        outcome = run_analysis(analysis, build_scene(has_gpu), tmp_path)
        return outcome["status"], outcome["reason"]

    frame = pd.DataFrame({"a": [1.5]})
    assert run(Analysis("good", lambda scene: frame)) == ("ok", "")
    assert (tmp_path / "good.csv").read_text() == "a\n1.5\n"
    assert run(Analysis("crash", crash)) == ("failed", "KeyError: 'thread_id'")
    for empty in (None, pd.DataFrame(), pd.DataFrame({"a": [float("nan")]}), {"x": None}):
        assert run(Analysis("empty", lambda scene, e=empty: e)) == ("unsupported", "HTA returned nothing")
    # on CPU traces an analysis for GPUs is not even called: its crash says nothing
    assert run(Analysis("crash", crash), has_gpu=False)[0] == "unsupported"
    assert run(Analysis("no", crash, obstacle=lambda scene: "why not")) == ("unsupported", "why not")


def test_large_tables_are_cut_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    monkeypatch.setattr("stratlab.analysis.hta.worker.MOST_ROWS", 2)
    outcome = run_analysis(
        Analysis("big", lambda scene: pd.DataFrame({"a": [1, 2, 3]})), build_scene(), tmp_path
    )
    assert (outcome["status"], outcome["reason"]) == ("ok", "big.csv holds the first 2 of 3 rows")
    assert len(read_table(tmp_path / "big.csv")) == 2


@pytest.mark.parametrize("parent", [True, False])
def test_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: bool) -> None:
    """As in `stratlab analyze results/runs/demo/ddp`: HTA's process runs in another folder."""
    write_run(tmp_path / "results" / "demo" / "ddp", {0: build_gpu_trace(0), 1: build_gpu_trace(1)})
    monkeypatch.chdir(tmp_path / ("results" if parent else "results/demo/ddp"))
    report = analyze_run(Path("demo/ddp" if parent else "."), tracking_uri=None)
    states = Counter(row["status"] for row in report["hta"])
    assert states["failed"] == 0 and states["ok"] >= 12, report["hta"]
    tables = tmp_path / "results" / "demo" / "ddp" / "analysis" / "tables" / "hta"
    assert read_table(tables / "temporal_breakdown.csv")


def test_nothing_but_failures_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is written, and the exit code says that something is missing in it."""
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    monkeypatch.setattr("stratlab.analysis.hta.bridge._run", lambda *_: "HTA's process ended with 1: no hta")
    done = CliRunner().invoke(cli.app, ["analyze", str(run)])
    assert done.exit_code == 1
    assert (
        "warning: Holistic Trace Analysis, temporal_breakdown: HTA's process ended with 1: no hta"
        in done.output
    )
    assert "every analysis of Holistic Trace Analysis failed" in done.output
    assert (run / "analysis" / "report.html").is_file()


def test_where_it_is_not_installed_it_does_not_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a bare GPU machine, say, which has our part of the analysis alone."""
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    monkeypatch.setattr(hta_bridge, "find_spec", lambda name: None if name == "plotly" else name)
    done = CliRunner().invoke(cli.app, ["analyze", str(run)])
    assert (done.exit_code, "failed" in done.output) == (0, False)
    (status, *others) = json.loads((run / "analysis" / "report.json").read_text())["hta"]
    assert (status["status"], status["reason"]) == ("unsupported", "not installed here: plotly")
    assert len(others) == len(ANALYSES) - 1


def test_one_failure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    one = [
        HtaStatus("a", "failed", "KeyError"),
        HtaStatus("b", "ok"),
        HtaStatus("c", "unsupported", "needs two ranks"),
    ]
    monkeypatch.setattr("stratlab.analysis.analyze.run_hta", lambda *_: HtaRun(one, [0]))
    done = CliRunner().invoke(cli.app, ["analyze", str(run)])
    assert done.exit_code == 0
    assert "warning: Holistic Trace Analysis, a: KeyError" in done.output and "two ranks" not in done.output


def test_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    path = build_gpu_trace(0).write(tmp_path / "rank0_trace.json")
    statuses = run_hta({0: path}, True, SMALL, tmp_path, HtaLimits(timeout_s=0.3)).statuses
    assert {(s.status, s.reason) for s in statuses} == {("failed", "not done within 0.3 s")}


def test_process_that_dies_says_so_and_keeps_what_was_done(tmp_path: Path) -> None:
    """A truncated file ends HTA as a whole; such files do not get this far, but others may do the same."""
    (tmp_path / "rank0_trace.json").write_text('{"traceEvents": [')
    statuses = run_hta({0: tmp_path / "rank0_trace.json"}, True, SMALL, tmp_path).statuses
    assert {s.status for s in statuses} == {"failed"}
    assert statuses[0].reason.startswith("HTA's process ended with 1: ")
    lines = (
        '{"analysis": "profiler_steps", "status": "ok", "reason": "", "tables": ["a.csv"], "seconds": 1.5}\n'
    )
    (tmp_path / "status.jsonl").write_text(lines)
    first, second = hta_bridge._read_statuses(tmp_path / "status.jsonl", "killed")[:2]
    assert (first.status, first.tables, first.seconds) == ("ok", ("a.csv",), 1.5)
    assert (second.status, second.reason) == ("failed", "killed")


def test_environment_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this variable HTA cuts up to 2 us off every kernel."""
    seen: dict[str, Any] = {}

    class Process:
        def __init__(self, command: list[str], env: dict[str, str], **options: Any) -> None:
            seen.update(env=env, **options)

        def wait(self, timeout: float) -> int:
            return 0

    monkeypatch.setattr(hta_bridge.subprocess, "Popen", Process)
    assert hta_bridge._run(tmp_path, 1) == ""
    assert seen["env"]["HTA_DISABLE_NS_ROUNDING"] == "1"
    assert seen["env"]["OMP_NUM_THREADS"] == seen["env"]["OPENBLAS_NUM_THREADS"] == "1"
    assert seen["cwd"] == tmp_path and seen["start_new_session"]
    assert "HTA_DISABLE_NS_ROUNDING" not in os.environ
