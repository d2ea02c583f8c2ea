"""The whole verb: partial and damaged runs, what is written and what is not."""

import json
import os

import pytest

from stratlab.analysis import measure
from stratlab.analysis import run_analysis as analyze
from stratlab.analysis.mlflow_upload import build_numbers, build_tags
from stratlab.analysis.run_analysis import analyze_run
from tests.codes import find_codes
from tests.stratlab.analysis.conftest import NO_HTA
from tests.stratlab.raised import raised
from tests.stratlab.simulated.small import STEP_MS, build_gpu_trace, write_manifest, write_run


def run_analyze(run):
    return analyze_run(run, tracking_uri=None, hta_limits=NO_HTA)


def said(report, action="noted"):
    rows = [row for row in report["quality"] if row["action"] == action]
    return [(code, row["rank"]) for row in rows for code in find_codes(row["reason"])]


def refuse(run):
    return find_codes(raised(run_analyze, run))


def test_gpu_traces(plain_report):
    assert (plain_report["source"], plain_report["note"], plain_report["backend"]) == ("gpu", "", "nccl")
    first, second = plain_report["ranks"]
    expected = {name: value for name, value in STEP_MS.items() if name in first}
    assert {name: first[name] for name in expected} == pytest.approx(expected)
    assert first["compute_pct"] == second["compute_pct"] == pytest.approx(65)
    assert first["comm_overlap_pct"] == pytest.approx(100 * 0.2 / 0.3)
    assert second["comm_overlap_pct"] == pytest.approx(100 * 0.1 / 0.2)
    assert plain_report["mean"]["comm_pct"] == pytest.approx(25)
    assert (plain_report["mean"]["ranks"], plain_report["mean"]["steps"]) == (2, 3)
    waits = [row["wait_ms"] for row in plain_report["collectives"]]
    assert waits == [pytest.approx(0.3), pytest.approx(0)]
    assert said(plain_report) == [("SL-summary-missing", None)]


def test_damaged_ranks_are_named_and_the_others_analysed(tmp_path):
    run = write_run(tmp_path / "run", {rank: build_gpu_trace(rank) for rank in range(6)})
    traces = run / "traces"
    cut = (traces / "rank1_trace.json").read_bytes()
    (traces / "rank1_trace.json").write_bytes(cut[: len(cut) // 2])
    (traces / "rank2_trace.json").write_bytes(b"")
    (traces / "rank3_trace.json").write_text('{"traceEvents": [\n  ]}')
    write_manifest(traces)  # as of a writer that did not notice
    (traces / "rank4_trace.json").unlink()
    told = []
    report = analyze_run(run, tracking_uri=None, hta_limits=NO_HTA, progress=told.append)
    assert [row["rank"] for row in report["ranks"]] == [0, 5]
    assert sorted(said(report, "skipped")) == [
        ("SL-file-empty", 2),
        ("SL-manifest-file-missing", 4),
        ("SL-trace-no-duration", 3),
        ("SL-trace-not-json", 1),
    ]
    assert "SL-rank-no-trace" not in dict(said(report)), "said once"
    assert "rank0_trace.json" in told[0] and len([line for line in told if line.startswith("warning")]) == 4


def test_no_traces(tmp_path):
    run = write_run(tmp_path / "run", {})
    assert "SL-no-trace-usable" in refuse(run)
    (run / "traces" / "rank0_trace.json").write_text("{")
    (run / "summary.json").write_text("{}")
    assert "SL-trace-no-events" in refuse(run), "damaged traces of a finished run are no success"
    assert sorted(path.name for path in run.iterdir()) == ["config.json", "summary.json", "traces"]


SUMMARY = {"step_time_ms_p50": 28.25, "measured_steps": 190, "train_loss": 0.5, "peak_host_memory_gib": 0.75}


@pytest.mark.parametrize("profile_steps", [0, 3])
def test_a_finished_run_without_traces_is_reported(tmp_path, profile_steps):
    run = write_run(tmp_path / "run", {}, manifest=False)
    config = json.loads((run / "config.json").read_text())
    config["config"]["profile_steps"] = profile_steps
    (run / "config.json").write_text(json.dumps(config))
    (run / "summary.json").write_text(json.dumps(SUMMARY))
    report = run_analyze(run)
    assert (report["source"], report["mean"], report["parts"]) == (None, {"ranks": 0, "steps": 0}, [])
    files = ["report.html", "report.json", "summary.md", "tables"]
    assert sorted(path.name for path in (run / "analysis").iterdir()) == files
    assert json.loads((run / "analysis" / "report.json").read_text()) == report
    assert ("profile_steps" in report["note"]) == (profile_steps == 0)
    for name in ("report.html", "summary.md"):
        text = (run / "analysis" / name).read_text().replace("\\", "")
        assert report["note"] in text and "28.25" in text and "190" in text and "0.75" in text
    assert build_tags(report)["trace_source"] == "none" and build_numbers(report)["ranks"] == 0


def test_not_a_run_directory(tmp_path):
    assert refuse(tmp_path / "absent") == ["SL-run-folder-missing"]
    assert refuse(tmp_path) == ["SL-run-folder-empty"]
    for content in ("[]", "{"):
        (tmp_path / "config.json").write_text(content)
        assert refuse(tmp_path) == ["SL-run-config-not-json"]
    (tmp_path / "config.json").rename(tmp_path / "other.json")
    assert refuse(tmp_path) == ["SL-run-no-config"] and not (tmp_path / "analysis").exists()


def test_a_fault_or_bug_on_one_rank_leaves_the_others(tmp_path, monkeypatch, capfd):
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0), 1: build_gpu_trace(1)})
    read = measure.read_rank_trace

    def fail(rank, *rest):
        return read(rank, *rest) if rank == 0 else 1 // 0

    monkeypatch.setattr(measure, "read_rank_trace", fail)
    report = run_analyze(run)
    assert [row["rank"] for row in report["ranks"]] == [0] and said(report, "skipped") == [("SL-rank-bug", 1)]
    assert "Traceback" in capfd.readouterr().err
    monkeypatch.setattr(measure, "read_rank_trace", lambda *_: (_ for _ in ()).throw(MemoryError))
    told = measure._read_rank((0, run / "traces" / "rank0_trace.json", {}, tmp_path))
    assert find_codes(told) == ["SL-rank-no-memory"]


def test_second_analysis_replaces_the_first_and_a_failure_leaves_it(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    first = run_analyze(run)
    (run / "analysis" / "tables" / "stale.csv").touch()
    os.chmod(run / "traces", 0o555)  # they are only read
    assert run_analyze(run) == first
    os.chmod(run / "traces", 0o755)
    monkeypatch.setattr(analyze, "build_html", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError):
        run_analyze(run)
    assert json.loads((run / "analysis" / "report.json").read_text()) == json.loads(json.dumps(first))
    files = ["report.html", "report.json", "summary.md", "tables"]
    assert sorted(path.name for path in (run / "analysis").iterdir()) == files
    assert not (run / "analysis" / "tables" / "stale.csv").exists()
    assert sorted(p.name for p in run.iterdir()) == ["analysis", "config.json", "traces"]


def test_what_is_not_wanted_is_neither_run_nor_written(tmp_path):
    run = write_run(tmp_path / "run", {rank: build_gpu_trace(rank) for rank in range(2)})
    report = analyze_run(run, tracking_uri=None, hta_limits=None, merge=False)
    assert (report["hta"], report["merged"]["file"]) == ([], None)
    assert find_codes(report["hta_ranks"]["reason"]) == ["SL-hta-unasked"]
    assert find_codes(report["merged"]["reason"]) == ["SL-merge-unasked"]
    assert not [*(run / "analysis").glob("*.gz")] and "SL-hta-unasked" in (
        run / "analysis" / "report.html"
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("stack", "file", "codes"), [(False, None, ["SL-merge-one-rank"]), (True, "merged_trace.json.gz", [])]
)
def test_a_single_trace_is_merged_only_to_move_python_s_stack(tmp_path, stack, file, codes):
    trace = build_gpu_trace(0)
    if stack:
        trace.add("python_function", "train.py(7): step", 5050, 5450)
    merged = run_analyze(write_run(tmp_path / "run", {0: trace}))["merged"]
    assert (merged["file"], find_codes(merged["reason"])) == (file, codes)


def test_a_folder_analysis_of_somebody_else_stays(tmp_path):
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    (run / "analysis").mkdir()
    (run / "analysis" / "thesis.tex").write_text("mine")
    refusal = raised(run_analyze, run)
    assert find_codes(refusal) == ["SL-analysis-of-others"] and "thesis.tex" in str(refusal)
    assert (run / "analysis" / "thesis.tex").read_text() == "mine"


def test_a_run_of_mlflow_analysed_without_a_server_is_told_of(tmp_path):
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    told = []
    analyze_run(run, tracking_uri=None, hta_limits=NO_HTA, progress=told.append)
    (run / "mlflow.json").write_text("{}")
    assert "SL-analysis-not-in-mlflow" not in find_codes(told)
    analyze_run(run, tracking_uri=None, hta_limits=NO_HTA, progress=told.append)
    assert "SL-analysis-not-in-mlflow" in find_codes(told)
