"""Runs of a tiny chart from helm to their report, and what stays when something goes wrong."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from stratlab import rehearsal as summary
from stratlab.machine import Interrupted
from stratlab.progress import Display
from stratlab.rehearsal import RunEnd, describe_end, describe_stop, next_commands, rehearse
from stratlab.rehearsal_plan import RehearsalRequest
from tests.stratlab.rehearse.conftest import TRAIN, no_server, write_chart

Screen = tuple[Display, Callable[[], str]]


def run(tmp_path: Path, screen: Screen, *charts: Path, fault: str = "", **options: object) -> list[RunEnd]:
    options["settings"] = [f"run.config.fault={fault}"]
    request = RehearsalRequest(
        charts=charts, results=tmp_path / "out/runs", mlflow=tmp_path / "out/mlflow", **options
    )  # type: ignore[arg-type]
    return rehearse(request, screen[0], start_server=no_server)


def test_a_run_trains_waits_and_is_analyzed(
    chart: Path, tmp_path: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINER_LR", "9")
    (end,) = run(tmp_path, screen, chart)
    run_dir = tmp_path / "out/runs/demo/tiny"
    assert end == RunEnd("tiny", run_dir, 0)
    environ = json.loads((run_dir / "config.json").read_text())["environ"]
    assert "TRAINER_LR" not in environ
    assert (environ["TRAINER_RUN"], environ["PYTHONUNBUFFERED"]) == ("tiny", "1")
    logs = run_dir.parent / ".logs" / "tiny"
    assert (logs / "node0.log").read_text().endswith("line 39\n")
    assert "exit code 0" in (logs / "analysis.log").read_text(), "the waiter"
    assert "4 steps, world size 1 (cpu, gloo), train_loss 0.25, samples_per_s 800" in screen[1]()
    told = describe_end(end)
    assert told["run_dir"] == str(run_dir) and told["comparison"] == "demo"
    assert (told["exit_code"], told["reason"]) == (0, "done")
    assert told["report"] == f"{run_dir}/analysis/report.html"
    assert (told["steps"], told["world_size"], told["device_type"]) == (4, 1, "cpu")
    assert (told["samples_per_s"], told["train_loss"], told["test_accuracy_pct"]) == (800.0, 0.25, None)


def test_a_stopped_run_says_how_it_goes_on(
    chart: Path, tmp_path: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "out/runs/demo/tiny"

    def stop(pods: object, processes: object, env: object, logs: object, tick: object) -> None:
        run_dir.mkdir(parents=True)
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr("stratlab.rehearsal.run_pods", stop)
    with pytest.raises(Interrupted):
        run(tmp_path, screen, chart)
    anew = describe_stop(run_dir)
    assert anew[:40] in screen[1]() and "run.config.checkpoint_every" in anew
    (run_dir / "checkpoints/step_00000100").mkdir(parents=True)
    assert describe_stop(run_dir) == anew
    (run_dir / "checkpoints/step_00000100/COMMIT").touch()
    assert "checkpoint_every" not in describe_stop(run_dir)
    (run_dir / "summary.json").write_text('{"steps": 4}')
    assert f"stratlab analyze {run_dir}" in describe_stop(run_dir)


def test_a_failure_shows_code_reason_and_the_last_lines(chart: Path, tmp_path: Path, screen: Screen) -> None:
    other = write_chart(tmp_path / "other")
    ends = run(tmp_path, screen, chart, other, fault="10")
    assert [(end.name, end.code) for end in ends] == [("tiny", 10)]
    shown = screen[1]()
    assert all(word in shown for word in ("exit code 10", "out of memory", "tiny-worker-0"))
    assert "| line 25\n" in shown and "| line 39\n" in shown and "| line 24\n" not in shown
    assert f"log: {tmp_path}/out/runs/demo/.logs/tiny/node0.log" in shown
    assert "restartPolicy" not in shown


def test_keep_going_and_codes_that_a_cluster_would_try_again(
    chart: Path, tmp_path: Path, screen: Screen
) -> None:
    other = write_chart(tmp_path / "other")
    ends = run(tmp_path, screen, chart, other, fault="143", keep_going=True, analysis=False)
    assert [end.code for end in ends] == [143, 143]
    assert "restartPolicy ExitCode" in screen[1]()


def test_a_full_volume_is_told_although_neither_log_nor_reason_could_be_written(
    tmp_path: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "the volume of /data has 0 of 61440 bytes free"
    monkeypatch.setattr(summary, "say_full", lambda folder: said)
    chart = write_chart(tmp_path / "tiny", train="import sys; sys.exit(int(sys.argv[1]))")
    assert [end.code for end in run(tmp_path, screen, chart, fault="13")] == [13]
    assert "exit code 13 (storage full) in tiny-worker-0" in screen[1]() and said in screen[1]()


@pytest.mark.parametrize(
    ("fault", "last", "analyzed"), [("12", "ended", True), ("143", "ended", False), ("2", "started", False)]
)
def test_the_traces_of_a_run_that_failed_for_good_are_analyzed(
    tmp_path: Path, screen: Screen, fault: str, last: str, analyzed: bool
) -> None:
    """An attempt that has not ended is of another start, which is at work: beside it this one was refused."""
    traces = 'os.mkdir(run_dir + "/traces"); json.dump({}, open(run_dir + "/traces/manifest.json", "w"))\n'
    train = TRAIN.replace("code = int(", f"{traces}code = int(").replace(
        '"event": "ended"', f'"event": "{last}"'
    )
    ends = run(tmp_path, screen, write_chart(tmp_path / "tiny", train=train), fault=fault)
    assert [end.code for end in ends] == [int(fault)]
    assert (tmp_path / "out/runs/demo/tiny/analysis/report.html").exists() is analyzed


def test_a_refused_setting_leaves_nothing_and_gives_the_old_run_back(
    chart: Path, tmp_path: Path, screen: Screen
) -> None:
    ends = run(tmp_path, screen, chart, fault="refuse")
    assert [end.code for end in ends] == [2]
    assert "  | TRAINER_LR=-1: " in screen[1]() and "log:" not in screen[1]()
    assert not (tmp_path / "out").exists() and next_commands(ends, tmp_path) == []
    run(tmp_path, screen, chart, analysis=False)
    run_dir = tmp_path / "out/runs/demo/tiny"
    assert not (run_dir / "analysis").exists()
    old = (run_dir / "summary.json").stat().st_ino
    assert [end.code for end in run(tmp_path, screen, chart, fault="refuse", replace=True)] == [2]
    assert (run_dir / "summary.json").stat().st_ino == old
    assert run(tmp_path, screen, chart, replace=True, analysis=False)[0].code == 0
    assert (run_dir / "summary.json").stat().st_ino != old
    assert [entry.name for entry in run_dir.parent.iterdir() if entry.name != "tiny"] == [".logs"]
