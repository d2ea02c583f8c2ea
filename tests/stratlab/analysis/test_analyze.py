"""The whole verb: real gloo traces, partial and damaged runs, what is written and what is not."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis import analyze
from stratlab.analysis.analyze import RUNNING, NoTraces, analyze_run
from stratlab.analysis.hta.bridge import HtaLimits
from stratlab.analysis.measuring import measure
from stratlab.analysis.mlflow_upload import build_numbers, build_tags
from stratlab.analysis.pages.untraced import say_untraced
from stratlab.compare.explaining.traced_step import build_traced_step
from stratlab.traces.chunks import LIMITS
from stratlab.traces.packed import PackedFile
from stratlab.user_error import UserError
from tests.stratlab.simulated.small import (
    STEP_MS,
    build_cpu_trace,
    build_gpu_trace,
    write_manifest,
    write_run,
)

NO_HTA = HtaLimits(memory_bytes=0)
DELAY_MS = 50  # of rank 1 in record_gloo
PHASES = ["data", "forward", "backward", "optimizer"]


def run_analyze(run: Path) -> dict[str, Any]:
    """Without HTA."""
    return analyze_run(run, tracking_uri=None, hta_limits=NO_HTA)


def reasons(report: dict[str, Any]) -> list[tuple[str, int | None, str]]:
    return [(row["action"], row["rank"], row["reason"]) for row in report["quality"]]


def test_real_gloo_traces(gloo_report: dict[str, Any]) -> None:
    assert gloo_report["source"] == "cpu"
    assert gloo_report["note"] == "CPU trace: host operator time, not GPU utilisation"
    assert (gloo_report["backend"], gloo_report["device"]) == ("gloo", "test processor")
    assert [(row["rank"], row["step"]) for row in gloo_report["steps"]] == [
        (rank, step) for rank in (0, 1) for step in (10, 11, 12)
    ]
    assert gloo_report["phases_present"] == {"0": PHASES, "1": PHASES}
    for row in gloo_report["steps"]:
        whole = row["compute_ms"] + row["comm_exposed_ms"] + row["copy_exposed_ms"] + row["idle_ms"]
        assert whole == pytest.approx(row["step_ms"], abs=1e-6)
        phases = sum(row[f"{phase}_ms"] for phase in PHASES)
        assert 0.5 * row["step_ms"] < phases <= row["step_ms"]
        assert row["comm_ms"] > 0 and row["compute_ms"] > 0
    assert {row["name"] for row in gloo_report["collectives"]} == {"gloo:all_reduce"}


def test_rank_that_starts_late_is_found_in_real_traces(gloo_report: dict[str, Any]) -> None:
    punctual, late = gloo_report["ranks"]
    assert late["data_ms"] >= DELAY_MS > punctual["data_ms"]
    # the other one pays for it: its all-reduce, not hidden by any operator
    assert punctual["comm_exposed_pct"] > late["comm_exposed_pct"]
    waits = {row["rank"]: row["wait_ms"] for row in gloo_report["collectives"]}
    assert waits[0] > 3 * 0.5 * DELAY_MS > waits[1]


def test_gpu_traces(gpu_report: dict[str, Any]) -> None:
    assert (gpu_report["source"], gpu_report["note"], gpu_report["backend"]) == ("gpu", "", "nccl")
    first, second = gpu_report["ranks"]
    expected = {name: value for name, value in STEP_MS.items() if name in first}
    assert {name: first[name] for name in expected} == pytest.approx(expected)
    assert first["compute_pct"] == second["compute_pct"] == pytest.approx(65)
    assert first["comm_overlap_pct"] == pytest.approx(100 * 0.2 / 0.3)
    assert second["comm_overlap_pct"] == pytest.approx(100 * 0.1 / 0.2)
    assert gpu_report["mean"]["comm_pct"] == pytest.approx(25)
    assert (gpu_report["mean"]["ranks"], gpu_report["mean"]["steps"]) == (2, 3)
    assert [(row["rank"], row["wait_ms"]) for row in gpu_report["collectives"]] == [
        (0, pytest.approx(0.3)),
        (1, pytest.approx(0)),
    ]
    assert [row["reason"] for row in gpu_report["quality"]] == ["is missing: the run did not finish"]


def test_files_of_an_analysis(gpu_run: Path, gpu_report: dict[str, Any]) -> None:
    folder = gpu_run / "analysis"
    assert json.loads((folder / "report.json").read_text()) == json.loads(json.dumps(gpu_report))
    tables = {path.name: path.read_text().splitlines() for path in (folder / "tables").glob("*.csv")}
    metrics = ("rank", "step", "phase")
    stats = ("kernel", "collective", "copy", "idle")
    names = {*(f"{n}_metrics.csv" for n in metrics), *(f"{n}_stats.csv" for n in stats), "quality.csv"}
    assert set(tables) - {"memory_curve.csv"} == names | {"hta_status.csv"}
    assert len(tables["step_metrics.csv"]) == 1 + 6
    assert len(tables["phase_metrics.csv"]) == 1 + 6 * 5  # four phases and what lies between them
    assert (folder / "summary.md").read_text().startswith("# ")
    assert [path.name for path in gpu_run.iterdir() if path.name.startswith(".")] == []


def test_damaged_ranks_are_named_and_the_others_analysed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {rank: build_gpu_trace(rank) for rank in range(6)})
    traces = run / "traces"
    cut = (traces / "rank1_trace.json").read_bytes()
    (traces / "rank1_trace.json").write_bytes(cut[: len(cut) // 2])
    (traces / "rank2_trace.json").write_bytes(b"")
    (traces / "rank3_trace.json").write_text('{"traceEvents": [\n  ]}')
    write_manifest(traces)  # as of a writer that did not notice
    (traces / "rank4_trace.json").unlink()
    report = run_analyze(run)
    assert [row["rank"] for row in report["ranks"]] == [0, 5]
    found = {rank: reason for action, rank, reason in reasons(report) if action == "skipped"}
    assert set(found) == {1, 2, 3, 4}
    assert not [reason for _, _, reason in reasons(report) if "has no trace" in reason]  # said once
    assert "truncated" in found[1] and found[2] == "empty file"
    assert found[3] == "holds no event with a duration" and found[4] == "listed in the manifest, but missing"


def test_partial_traces_of_a_failed_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0, steps=2)}, manifest=False, world_size=3)
    build_gpu_trace(2, steps=1).write(run / "traces" / "rank2_trace.json")
    assert reasons(report := run_analyze(run)) == [
        ("noted", None, "is missing, the traces are found by their content"),
        ("noted", 1, "has no trace, the means are over the other ranks"),
        ("noted", None, "is missing: the run did not finish"),
        ("noted", 2, "holds the steps 10, another rank 10, 11"),
    ]
    assert report["run"]["finished"] is False
    assert report["mean"]["ranks"] == 2


def test_lost_steps_are_noted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0, steps=2)})
    assert ("noted", None, "2 of 3 profiled steps are in the traces") in reasons(run_analyze(run))


def test_gpu_and_host_time_are_never_mixed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0), 1: build_cpu_trace(1)})
    report = run_analyze(run)
    assert report["source"] == "gpu" and [row["rank"] for row in report["ranks"]] == [0]
    assert ("skipped", 1, "holds no GPU event, unlike the traces of other ranks") in reasons(report)


def test_gpu_run_without_gpu_events_says_so(tmp_path: Path) -> None:
    report = run_analyze(write_run(tmp_path / "run", {0: build_cpu_trace(0)}))
    assert report["note"] == "CPU trace: host operator time, not GPU utilisation"
    assert ("noted", None, "the run used cuda, but its traces hold no GPU event") in reasons(report)


def test_several_process_groups_give_no_waiting(tmp_path: Path) -> None:
    axes = {"dp_replicate": 2, "dp_shard": 2}
    run = write_run(tmp_path / "run", {rank: build_gpu_trace(rank) for rank in (0, 1)}, axes=axes)
    assert {row["wait_ms"] for row in run_analyze(run)["collectives"]} == {None}


def test_no_traces(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {})
    with pytest.raises(NoTraces, match="no trace can be analysed"):
        run_analyze(run)
    (run / "traces" / "rank0_trace.json").write_text("{")
    with pytest.raises(NoTraces, match=r"rank0_trace\.json: .*\(skipped\)"):
        run_analyze(run)
    shutil.rmtree(run / "traces")
    with pytest.raises(NoTraces):
        run_analyze(run)
    assert [path.name for path in run.iterdir()] == ["config.json"]


def test_no_traces_of_a_run_that_goes_on(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {})
    attempts = run / "attempts.jsonl"
    for event, running in (("started", True), ("ended", False)):
        attempts.write_text(json.dumps({"attempt": 1, "event": event, "t": time.time()}) + "\n")
        with pytest.raises(NoTraces) as refusal:
            run_analyze(run)
        assert (RUNNING in str(refusal.value)) is running


def finish(run: Path, **changes: Any) -> None:
    numbers = {
        "step_time_ms_p50": 28.25,
        "measured_steps": 190,
        "train_loss": 0.5,
        "peak_host_memory_gib": 0.75,
    }
    (run / "summary.json").write_text(json.dumps(numbers | changes))


@pytest.mark.parametrize(("profile_steps", "why"), [(0, "profile_steps is 0"), (3, "traces/ holds none")])
def test_a_finished_run_without_traces_is_reported(tmp_path: Path, profile_steps: int, why: str) -> None:
    run = write_run(tmp_path / "run", {}, manifest=False)
    config = json.loads((run / "config.json").read_text())
    config["config"]["profile_steps"] = profile_steps
    (run / "config.json").write_text(json.dumps(config))
    finish(run)
    report = run_analyze(run)
    assert (report["source"], report["mean"], report["parts"]) == (None, {"ranks": 0, "steps": 0}, [])
    files = ["report.html", "report.json", "summary.md", "tables"]
    assert sorted(path.name for path in (run / "analysis").iterdir()) == files
    assert json.loads((run / "analysis" / "report.json").read_text()) == report
    for name in ("report.html", "summary.md"):
        text = (run / "analysis" / name).read_text().replace("\\", "")
        assert why in text and "28.25" in text and "190" in text and "0.75" in text
    assert build_traced_step(report) == "has no analysed traces"
    assert build_tags(report)["trace_source"] == "none" and build_numbers(report)["ranks"] == 0


def test_the_manifests_reason_is_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {}, manifest=False)
    finish(run)
    (run / "traces").mkdir(exist_ok=True)
    dropped = [{"rank": rank, "reason": "[Errno 28] No space left on device"} for rank in (1, 0)]
    manifest = {"schema_version": 1, "complete": False, "files": [], "dropped": dropped}
    (run / "traces" / "manifest.json").write_text(json.dumps(manifest))
    report = run_analyze(run)
    said = "The traces could not be kept, rank 0, 1: [Errno 28] No space left on device"
    assert report["note"] == said and say_untraced(report).startswith(f"{said}. A step took 28.")
    text = (run / "analysis" / "summary.md").read_text().replace("\\", "")
    assert said in text and "trained anew" in text


def test_damaged_traces_of_a_finished_run_are_no_success(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {})
    finish(run)
    (run / "traces" / "rank0_trace.json").write_text("{")
    with pytest.raises(NoTraces, match="rank0_trace"):
        run_analyze(run)
    assert not (run / "analysis").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "neither a run nor traces"), ("[]", "no JSON object"), ("{", "no JSON object")],
)
def test_not_a_run_directory(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        run_analyze(tmp_path)
    with pytest.raises(ValueError, match="no such folder"):
        run_analyze(tmp_path / "absent")
    assert not (tmp_path / "analysis").exists()


def test_traces_of_another_program(tmp_path: Path) -> None:
    """No config.json, no rank, no label of a step, but a device in its head: kernels and idle time are still there."""
    trace = build_gpu_trace(None, steps=1)
    trace.head["deviceProperties"] = [{"id": 0, "name": "NVIDIA A100"}]
    trace.events = [event for event in trace.events if event["cat"] != "user_annotation"]
    trace.write(tmp_path / "traces" / "resnet.pt.trace.json")
    report = run_analyze(tmp_path)
    assert (report["steps_from"], report["device"]) == ("recording", "NVIDIA A100")
    assert report["note"] == "No label tells the steps: the whole recording counts as one"
    assert report["mean"]["compute_pct"] == pytest.approx(100 * 0.65 / 0.8)
    assert {row["type"] for row in report["kernels"]} == {"compute", "comm", "copy"}
    found = {(row["file"], row["reason"]) for row in report["quality"]}
    assert ("resnet.pt.trace.json", "names no rank, the only trace counts as rank 0") in found
    assert ("config.json", "is missing: what the run was asked is not known") in found
    assert "whole recording counts as one" in (tmp_path / "analysis" / "summary.md").read_text()


def test_steps_and_whole_recordings_are_not_mixed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0), 1: build_gpu_trace(1)}, manifest=False)
    other = build_gpu_trace(1)
    other.events = [event for event in other.events if event["cat"] != "user_annotation"]
    other.write(run / "traces" / "rank1_trace.json")
    report = run_analyze(run)
    assert [row["rank"] for row in report["ranks"]] == [0] and report["steps_from"] == "labels"
    (entry,) = [row for row in report["quality"] if row["action"] == "skipped"]
    assert (entry["rank"], entry["reason"].partition(",")[2]) == (1, " unlike the traces of other ranks")


def test_fault_on_one_rank_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0), 1: build_gpu_trace(1)})
    read = measure.read_rank_trace

    def fail(rank: int, *rest: Any) -> Any:
        return read(rank, *rest) if rank == 0 else 1 // 0

    monkeypatch.setattr(measure, "read_rank_trace", fail)
    report = run_analyze(run)
    assert [row["rank"] for row in report["ranks"]] == [0]
    (entry,) = [row for row in report["quality"] if row["action"] == "skipped"]
    assert "ZeroDivisionError" in entry["reason"]


def test_second_analysis_replaces_the_first(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    first = run_analyze(run)
    (run / "analysis" / "tables" / "stale.csv").touch()
    assert run_analyze(run) == first
    files = ["merged_trace.json.gz", "report.html", "report.json", "summary.md", "tables"]
    assert sorted(p.name for p in (run / "analysis").iterdir()) == files
    assert not (run / "analysis" / "tables" / "stale.csv").exists()
    assert sorted(p.name for p in run.iterdir()) == ["analysis", "config.json", "traces"]


def test_failure_leaves_the_earlier_analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    first = run_analyze(run)
    monkeypatch.setattr(analyze, "build_html", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        run_analyze(run)
    assert json.loads((run / "analysis" / "report.json").read_text()) == json.loads(json.dumps(first))
    assert sorted(p.name for p in run.iterdir()) == ["analysis", "config.json", "traces"]


def test_traces_are_only_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in (run / "traces").iterdir()}
    os.chmod(run / "traces", 0o555)
    run_analyze(run)
    os.chmod(run / "traces", 0o755)
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in (run / "traces").iterdir()} == before


def test_progress_names_ranks_and_warns(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0), 1: build_gpu_trace(1)})
    (run / "traces" / "rank1_trace.json").write_text("{")
    said: list[str] = []
    analyze_run(run, tracking_uri=None, progress=said.append, hta_limits=NO_HTA)
    assert said[0] == "rank 0: rank0_trace.json (1 of 1)"
    assert [s for s in said if s.startswith("warning: rank1_trace.json: has 1 bytes")]


def test_forty_thousand_categories_and_an_endless_number_are_analysed(tmp_path: Path) -> None:
    """Each ended the whole analysis: the first as `Python integer 32768 out of bounds for int16`."""
    odd, named = build_gpu_trace(0), build_gpu_trace(1)
    for number in range(40_000):
        odd.add(f"category {number}", "note", 1.0, 2.0)
    named.label(f"## Training Step {'9' * 5000} ##", 1.0, 2.0)  # int() takes 4300 digits
    plain = write_run(tmp_path / "plain", {rank: build_gpu_trace(rank) for rank in range(2)})
    run = write_run(tmp_path / "run", {0: odd, 1: named, 2: build_gpu_trace(2)})
    report, expected = run_analyze(run), run_analyze(plain)
    assert [row["rank"] for row in report["ranks"]] == [0, 1, 2]
    assert [row["step_ms"] for row in report["ranks"][:2]] == [row["step_ms"] for row in expected["ranks"]]


def test_a_bug_costs_the_rank_that_meets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    build_gpu_trace(1).write(traces / "rank1_trace.json")
    monkeypatch.setattr(measure, "read_rank_trace", lambda *_: [][1])
    said = measure._read_rank((1, traces / "rank1_trace.json", {}, LIMITS, tmp_path))
    assert said == "a bug of stratlab met something new in it (IndexError: list index out of range)"
    assert "Traceback" in capfd.readouterr().err


def test_a_volume_without_room_for_the_merged_trace_costs_only_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", {rank: build_gpu_trace(rank) for rank in range(2)})

    def write(file: PackedFile, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PackedFile, "write", write)
    told: list[str] = []
    report = analyze_run(run, tracking_uri=None, hta_limits=NO_HTA, progress=told.append)
    assert (report["merged"]["file"], report["merged"]["ranks"]) == (None, [])
    assert "warning: no merged trace, it could not be written: No space left on device" in told
    assert [row["rank"] for row in report["ranks"]] == [0, 1]
    assert not [path for path in (run / "analysis").iterdir() if path.name.startswith(".")]


def test_a_folder_analysis_of_somebody_else_stays(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    run_analyze(run)
    run_analyze(run)  # its own it replaces
    for name in ("thesis.tex", "notes.ipynb"):
        (run / "analysis" / name).write_text("mine")
    with pytest.raises(UserError, match=r"would replace notes\.ipynb, thesis\.tex, which is not its own"):
        run_analyze(run)
    assert (run / "analysis" / "thesis.tex").read_text() == "mine"


def test_a_run_of_mlflow_analysed_without_a_server_is_told_of(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    said: list[str] = []
    analyze_run(run, tracking_uri=None, hta_limits=NO_HTA, progress=said.append)
    assert not any("MLflow" in line for line in said)
    (run / "mlflow.json").write_text("{}")
    analyze_run(run, tracking_uri=None, hta_limits=NO_HTA, progress=said.append)
    assert said[-1].startswith("the report is not in MLflow: --tracking-uri")
