from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.report_files import write_report
from stratlab.user_error import UserError
from tests.stratlab.example_run import build_run_dir

PER_RUN = [
    "config.json",
    "attempts.jsonl",
    "metrics.jsonl",
    "summary.json",
    "evaluation.json",
    "ranks/rank0.json",
    "ranks/rank1.json",
    "ranks/rank0.log",
    "traces/manifest.json",
    "traces/rank1_trace.json",
    "analysis/report.json",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "demo"
    for strategy in ("ddp", "fsdp"):
        build_run_dir(folder, strategy, strategy)
    return folder


def test_a_whole_run_is_complete(root: Path) -> None:
    runs = load_runs(root)
    assert [(run.name, run.status, run.missing, run.problems) for run in runs] == [
        ("ddp", "finished", [], []),
        ("fsdp", "finished", [], []),
    ]
    assert runs[0].mlflow_run_id == "id-ddp"
    assert len(runs[0].ranks) == 2 and len(runs[0].series("train", "loss")) == 60
    assert [row["complete"] for row in compare(runs)["runs"]] == [True, True]


@pytest.mark.parametrize("name", PER_RUN)
def test_a_missing_file_is_named_and_not_fatal(root: Path, tmp_path: Path, name: str) -> None:
    (root / "ddp" / name).unlink()
    runs = load_runs(root)
    assert runs[0].missing == [name]
    report = compare(runs)
    assert report["runs"][0]["complete"] is False and report["runs"][0]["missing"] == [name]
    assert report["runs"][1]["complete"] is True
    page = write_report(report, runs, tmp_path / "out").read_text()
    assert name in page


@pytest.mark.parametrize("name", ["config.json", "summary.json", "evaluation.json", "ranks/rank0.json"])
@pytest.mark.parametrize("content", ["{", "[1]", "\x00", ""])
def test_a_broken_file_is_named_and_not_fatal(root: Path, tmp_path: Path, name: str, content: str) -> None:
    (root / "ddp" / name).write_text(content)
    runs = load_runs(root)
    assert len(runs[0].problems) == 1 and Path(name).name in runs[0].problems[0]
    report = compare(runs)
    assert report["runs"][0]["complete"] is False
    assert report["fairness"]["verdict"] == ("comparable" if name == "evaluation.json" else "not comparable")
    write_report(report, runs, tmp_path / "out")


def test_half_a_line_at_the_end_does_not_lose_the_lines_before(root: Path) -> None:
    with open(root / "ddp" / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "st')
    run = load_runs(root)[0]
    assert len(run.series("train", "loss")) == 60
    assert run.problems == ["metrics.jsonl: 1 lines are not JSON objects"]


def test_a_repeated_step_counts_as_the_later_attempt_had_it(root: Path) -> None:
    with open(root / "ddp" / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"t": 9.0, "kind": "train", "attempt": 2, "step": 7, "loss": 5.0}) + "\n")
        file.write(
            json.dumps({"t": 9.0, "kind": "train", "attempt": 2, "step": 8}) + "\n"
        )  # not finite: left out
        file.write(
            json.dumps({"t": 9.0, "kind": "train", "attempt": 2, "step": 9, "loss": float("nan")}) + "\n"
        )
    series = load_runs(root)[0].series("train", "loss")
    assert series[7] == 5.0 and series[8] < 5.0 and series[9] < 5.0 and list(series) == list(range(1, 61))


@pytest.mark.parametrize(
    ("status", "ending"),
    [("failed", "out of memory (exit code 10)"), ("unfinished", "attempt 1 has started and not ended")],
)
def test_a_run_that_did_not_finish_is_listed_as_such(root: Path, status: str, ending: str) -> None:
    build_run_dir(root, "broken", "zero2", status=status, seed=7)
    runs = load_runs(root)
    report = compare(runs)
    row = next(row for row in report["runs"] if row["run"] == "broken")
    assert (row["status"], row["ending"], row["complete"], row["strategy"]) == (
        status,
        ending,
        False,
        "zero2",
    )
    assert "summary.json" in row["missing"]
    # it takes no part in the comparison: its other seed does not matter
    assert report["fairness"]["verdict"] == "comparable"
    assert f"broken is {status} and not ranked: {ending}" in report["remarks"]


def test_a_run_that_died_before_its_configuration_is_a_failed_run(root: Path) -> None:
    shutil.rmtree(root / "ddp" / "ranks")
    for name in ("config.json", "metrics.jsonl", "summary.json", "evaluation.json"):
        (root / "ddp" / name).unlink()
    lines = [{"t": 1.0, "attempt": 1, "event": "ended", "exit_code": 2, "reason": "bad configuration"}]
    (root / "ddp" / "attempts.jsonl").write_text(json.dumps(lines[0]) + "\n")
    runs = load_runs(root)
    assert (runs[0].status, runs[0].ending) == ("failed", "bad configuration (exit code 2)")
    compare(runs)


def test_ended_well_without_a_summary_is_not_finished(root: Path) -> None:
    (root / "ddp" / "summary.json").unlink()
    assert load_runs(root)[0].status == "unfinished"


def test_a_folder_that_is_no_run_is_named(root: Path) -> None:
    (root / "lost+found").mkdir()
    (root / ".cache").mkdir()
    runs = load_runs(root)
    assert [run.name for run in runs] == ["ddp", "fsdp", "lost+found"]
    report = compare(runs)
    assert [row["run"] for row in report["runs"]] == ["ddp", "fsdp"]
    assert [entry["folder"] for entry in report["not_runs"]] == [str(root / "lost+found")]
    assert "none of config.json" in report["not_runs"][0]["why"]


def test_the_report_of_an_earlier_comparison_is_no_run(root: Path) -> None:
    runs = load_runs(root)
    write_report(compare(runs), runs, root / "report")
    assert [run.name for run in load_runs(root)] == ["ddp", "fsdp"]


def test_a_run_without_a_profile_needs_no_traces(tmp_path: Path) -> None:
    build_run_dir(tmp_path / "demo", "ddp", "ddp", profile_steps=0, analysis=False)
    assert load_runs(tmp_path / "demo")[0].missing == []


def test_what_is_no_comparison_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder|not a folder"):
        load_runs(tmp_path / "absent")
    with pytest.raises(ValueError, match="this is one run; give the folder of its comparison"):
        load_runs(root / "ddp")
    with pytest.raises(ValueError, match=r"holds comparisons and is none itself"):
        load_runs(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="found nothing"):
        load_runs(tmp_path / "empty")


def test_a_folder_of_comparisons_names_the_commands_for_them(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "stratlab.compare.reading.comparison_folder.name_program"
    monkeypatch.setattr(name, lambda: ".venv/bin/stratlab")
    runs = tmp_path / "demo-results/runs"
    runs.mkdir(parents=True)
    shutil.move(root, runs / "demo")
    build_run_dir(runs / "my pets", "ddp", "ddp")
    (runs.parent / "mlflow/artifacts/1").mkdir(parents=True)
    for folder in (runs, runs.parent):
        with pytest.raises(UserError) as wrong:
            load_runs(folder)
        assert str(wrong.value).splitlines() == [
            f"{folder}: holds comparisons and is none itself; compare one:",
            f"  .venv/bin/stratlab compare {runs}/demo",
            f"  .venv/bin/stratlab compare '{runs}/my pets'",
        ]
