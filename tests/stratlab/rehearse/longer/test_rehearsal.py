"""Runs of a tiny chart from helm to their report, and what stays when something goes wrong."""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stratlab.machine import Interrupted, Processes, build_machine_env
from stratlab.pod_commands import Command, Pod
from stratlab.progress import Display
from stratlab.rehearsal import (
    LocalPodEnd,
    RunEnd,
    deciding_end,
    describe_end,
    describe_stop,
    next_commands,
    rehearse,
    run_pods,
)
from stratlab.rehearsal_plan import RehearsalRequest
from stratlab.trainer_program import Refused
from tests.codes import find_codes
from tests.stratlab.raised import raised
from tests.stratlab.rehearse.conftest import TRAIN, no_server, write_chart

Screen = tuple[Display, Callable[[], str]]


def run(tmp_path: Path, screen: Screen, *charts: Path, fault: str = "", **options: object) -> list[RunEnd]:
    options["settings"] = [f"run.config.fault={fault}"]
    request = RehearsalRequest(
        charts=charts, results=tmp_path / "out/runs", mlflow=tmp_path / "out/mlflow", **options
    )  # type: ignore[arg-type]
    return rehearse(request, screen[0], start_server=no_server)


def test_a_run_trains_waits_and_is_analyzed(chart, tmp_path, screen, monkeypatch):
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


def test_a_stopped_run_says_how_it_goes_on(chart, tmp_path, screen, monkeypatch):
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


def test_a_failure_shows_code_reason_and_the_last_lines(chart, tmp_path, screen):
    other = write_chart(tmp_path / "other")
    ends = run(tmp_path, screen, chart, other, fault="10")
    assert [(end.name, end.code) for end in ends] == [("tiny", 10)]
    shown = screen[1]()
    assert all(word in shown for word in ("exit code 10", "out of memory", "tiny-worker-0"))
    assert "| line 25\n" in shown and "| line 39\n" in shown and "| line 24\n" not in shown
    assert f"log: {tmp_path}/out/runs/demo/.logs/tiny/node0.log" in shown
    assert "restartPolicy" not in shown


def test_keep_going_and_codes_that_a_cluster_would_try_again(chart, tmp_path, screen):
    other = write_chart(tmp_path / "other")
    ends = run(tmp_path, screen, chart, other, fault="143", keep_going=True, analysis=False)
    assert [end.code for end in ends] == [143, 143]
    assert "restartPolicy ExitCode" in screen[1]()


@pytest.mark.parametrize(
    ("fault", "last", "analyzed"), [("12", "ended", True), ("143", "ended", False), ("2", "started", False)]
)
def test_the_traces_of_a_run_that_failed_for_good_are_analyzed(tmp_path, screen, fault, last, analyzed):
    traces = 'os.mkdir(run_dir + "/traces"); json.dump({}, open(run_dir + "/traces/manifest.json", "w"))\n'
    train = TRAIN.replace("code = int(", f"{traces}code = int(").replace(
        '"event": "ended"', f'"event": "{last}"'
    )
    ends = run(tmp_path, screen, write_chart(tmp_path / "tiny", train=train), fault=fault)
    assert [end.code for end in ends] == [int(fault)]
    assert (tmp_path / "out/runs/demo/tiny/analysis/report.html").exists() is analyzed


def test_a_refused_setting_leaves_nothing_and_gives_the_old_run_back(chart, tmp_path, screen):
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


def test_the_second_chart_is_refused_before_the_first_is_trained(tmp_path, screen):

    def no_server(*_: object, **__: object) -> None:
        raise AssertionError("MLflow was started")

    charts = [Path("charts/ddp"), Path("charts/single")]
    request = RehearsalRequest(
        charts=charts, results=tmp_path / "runs", mlflow=tmp_path / "mlflow", processes=2
    )
    with pytest.raises(Refused) as refusal:
        rehearse(request, screen[0], start_server=no_server)  # type: ignore[arg-type]
    assert refusal.value.code == 2 and "single: " in str(refusal.value) and "ddp" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def pod(name: str, *scripts: str) -> Pod:
    commands = tuple(Command("c", ("python", "-c", script), {"NAME": name}, None) for script in scripts)
    return Pod(name, name, commands, ())


def run_test_replicas(
    pods: Sequence[Pod], tmp_path: Path, after_failure_s: float = 30.0
) -> list[LocalPodEnd]:
    logs = {each.name: tmp_path / f"{each.name}.log" for each in pods}
    processes = Processes()
    try:
        env = build_machine_env(os.environ)
        return run_pods(pods, processes, env, logs, lambda: None, after_failure_s=after_failure_s)
    finally:
        assert not processes.members()


def test_init_containers_run_before_the_container_and_share_its_log(tmp_path):
    good = pod("a", "print('first')", "import os; print('then', os.environ['NAME'])")
    ends = run_test_replicas([good, pod("b", "raise SystemExit(3)", "print('never')")], tmp_path)
    assert {(end.pod, end.code) for end in ends} == {("a", 0), ("b", 3)}
    assert (tmp_path / "a.log").read_text() == "first\nthen a\n"
    assert "never" not in (tmp_path / "b.log").read_text()


def test_the_others_are_stopped_some_time_after_a_failure(tmp_path):
    started = time.monotonic()
    killed = pod("fails", "import os; os.kill(os.getpid(), 9)")
    ends = run_test_replicas([pod("waits", "import time; time.sleep(60)"), killed], tmp_path, 0.5)
    assert time.monotonic() - started < 20
    assert [(end.pod, end.code, end.stopped) for end in ends] == [("fails", 137, False), ("waits", 143, True)]
    assert deciding_end(ends).pod == "fails"


@pytest.mark.parametrize(
    ("codes", "decides"),
    [
        ([0, 143], 143),
        ([134, 10], 10),  # the survivor was quicker than the culprit
        ([134, 137], 137),
        ([137, 1], 1),  # the operator fails the job for a permanent code, whatever came first
        ([134, 134], 134),
        ([12, 10], 12),
    ],
)
def test_which_exit_code_is_the_runs(codes, decides):
    ends = [LocalPodEnd(f"p{index}", Path("log"), code) for index, code in enumerate(codes)]
    assert deciding_end(ends).code == decides
    stopped = LocalPodEnd("b", Path("log"), 1, stopped=True)
    assert deciding_end([*ends, stopped]).code == decides, "who was only stopped never decides"


def test_a_missing_program_is_named(tmp_path):
    missing = Pod("a", "a", (Command("c", ("no-such-program",), {}, None),), ())
    failure = raised(run_test_replicas, [pod("first", "import time; time.sleep(60)"), missing], tmp_path)
    assert find_codes(failure) == ["SL-program-not-started"] and "no-such-program" in str(failure)
