from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from stratlab.machine.interruption import Interrupted
from stratlab.progress.display import Display
from stratlab.rehearse import summary
from stratlab.rehearse.planned_run import PlannedRun, Request
from stratlab.rehearse.rehearsal import check_settings, rehearse
from stratlab.rehearse.summary import RunEnd, describe_end, describe_stop, describe_success, next_commands
from stratlab.rendering.checking import Answers
from stratlab.rendering.pod_commands import Command, Pod
from tests.stratlab.rehearse.conftest import JOB, TRAIN, no_server, write_chart

Screen = tuple[Display, Callable[[], str]]


def run(tmp_path: Path, screen: Screen, *charts: Path, **options: object) -> list[RunEnd]:
    request = Request(charts=charts, results=tmp_path / "out/runs", mlflow=tmp_path / "out/mlflow", **options)  # type: ignore[arg-type]
    return rehearse(request, screen[0], start_server=no_server)


def test_a_run_trains_waits_and_is_analyzed(
    chart: Path, tmp_path: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINER_LR", "9")
    ends = run(tmp_path, screen, chart)
    run_dir = tmp_path / "out/runs/demo/tiny"
    assert ends == [RunEnd("tiny", run_dir, 0)]
    assert (run_dir / "analysis" / "report.html").is_file()
    environ = json.loads((run_dir / "config.json").read_text())["environ"]
    assert "TRAINER_LR" not in environ
    assert environ["TRAINER_RUN"] == "tiny"
    assert environ["PYTHONUNBUFFERED"] == "1"
    logs = run_dir.parent / ".logs" / "tiny"
    assert (logs / "node0.log").read_text().endswith("line 39\n")
    assert "ended with exit code 0" in (logs / "analysis.log").read_text()
    shown = screen[1]()
    assert "tiny: analyzing" in shown
    assert "4 steps, world size 1 (cpu, gloo), train_loss 0.25, samples_per_s 800" in shown


def test_a_run_that_was_restarted_is_told_to_be_judged_with_nobody(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"steps": 4}')
    lines = [{"t": t, "attempt": n, "event": event} for t, n, event in ((1, 1, "started"), (2, 2, "started"))]
    attempts = tmp_path / "attempts.jsonl"
    attempts.write_text(json.dumps(lines[0]) + "\n")
    assert describe_success(tmp_path, 3) == "done in 3 s: 4 steps"
    attempts.write_text("".join(json.dumps(line) + "\n" for line in lines) + "half a li")
    said = describe_success(tmp_path, 3).splitlines()[1]
    assert said.startswith(
        "it took 2 attempts, so a comparison shows it and judges it with nobody: --replace"
    )
    (tmp_path / "summary.json").write_text("[" * 100_000)
    assert "without a summary.json" in describe_success(tmp_path, 3)


@pytest.mark.parametrize("dropped", [[{"rank": 0, "reason": "No space left on device."}], ["odd"], None, 3])
def test_traces_that_were_dropped_are_warned_of(tmp_path: Path, dropped: object) -> None:
    (tmp_path / "summary.json").write_text('{"steps": 4}')
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "manifest.json").write_text(json.dumps({"files": [], "dropped": dropped}))
    lines = describe_success(tmp_path, 3).splitlines()[1:]
    said = "warning: traces were dropped, rank 0: No space left on device; the analysis lacks them"
    assert lines == ([said] if isinstance(dropped, list) and dropped != ["odd"] else [])


def test_the_last_line_says_of_which_steps_its_throughput_is(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"steps": 20, "samples_per_s": 98.24, "measured_steps": 15}')
    assert describe_success(tmp_path, 3) == (
        "done in 3 s: 20 steps, samples_per_s 98.24 (mean of 15 timed steps; a comparison takes the median)"
    )


def test_a_stopped_run_says_how_it_goes_on(
    chart: Path, tmp_path: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(pods: object, processes: object, env: object, logs: object, tick: object) -> None:
        (tmp_path / "out/runs/demo/tiny").mkdir(parents=True)
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr("stratlab.rehearse.rehearsal.run_pods", stop)
    with pytest.raises(Interrupted):
        run(tmp_path, screen, chart)
    run_dir = tmp_path / "out/runs/demo/tiny"
    assert "tiny: stopped; the same chart with the same options trains it from the beginning" in screen[1]()
    (run_dir / "checkpoints/step_00000100").mkdir(parents=True)
    assert "from the beginning" in describe_stop(run_dir)
    (run_dir / "checkpoints/step_00000100/COMMIT").touch()
    assert describe_stop(run_dir).endswith("goes on from its newest checkpoint")
    (run_dir / "summary.json").write_text('{"steps": 4}')
    assert describe_stop(run_dir).endswith(f"stratlab analyze {run_dir} makes its report")


def test_without_analysis_only_the_job_runs(chart: Path, tmp_path: Path, screen: Screen) -> None:
    assert run(tmp_path, screen, chart, analysis=False)[0].code == 0
    assert not (tmp_path / "out/runs/demo/tiny/analysis").exists()


def test_a_failure_shows_code_reason_and_the_last_lines(chart: Path, tmp_path: Path, screen: Screen) -> None:
    other = write_chart(tmp_path / "other")
    ends = run(tmp_path, screen, chart, other, settings=["run.config.fault=10"])
    assert [(end.name, end.code) for end in ends] == [("tiny", 10)]
    shown = screen[1]()
    assert "training failed with exit code 10 (accelerator out of memory) in tiny-worker-0" in shown
    assert "| line 25\n" in shown and "| line 39\n" in shown and "| line 24\n" not in shown
    assert f"log: {tmp_path}/out/runs/demo/.logs/tiny/node0.log" in shown
    assert "a cluster would start it again" not in shown


def test_a_full_volume_is_told_although_neither_log_nor_reason_could_be_written(
    tmp_path: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "the volume of /data has 0 of 61440 bytes free"
    monkeypatch.setattr(summary, "say_full", lambda folder: said)
    chart = write_chart(tmp_path / "tiny", train="import sys; sys.exit(int(sys.argv[1]))")
    assert [end.code for end in run(tmp_path, screen, chart, settings=["run.config.fault=13"])] == [13]
    shown = screen[1]()
    assert "training failed with exit code 13 (storage full) in tiny-worker-0" in shown
    assert f"{said}: free space, then" in shown


@pytest.mark.parametrize(("fault", "analyzed"), [("12", True), ("143", False)])
def test_the_traces_of_a_run_that_failed_for_good_are_analyzed(
    tmp_path: Path, screen: Screen, fault: str, analyzed: bool
) -> None:
    leave_traces = TRAIN.replace(
        "code = int(",
        'os.mkdir(run_dir + "/traces"); json.dump({}, open(run_dir + "/traces/manifest.json", "w"))\ncode = int(',
    )
    chart = write_chart(tmp_path / "tiny", train=leave_traces)
    ends = run(tmp_path, screen, chart, settings=[f"run.config.fault={fault}"])
    assert [end.code for end in ends] == [int(fault)]
    assert ("its traces are analyzed" in screen[1]()) is analyzed
    assert (tmp_path / "out/runs/demo/tiny/analysis/report.html").exists() is analyzed


@pytest.mark.parametrize(("last", "analyzed"), [("ended", True), ("started", False)])
def test_a_start_beside_another_one_does_not_analyze_it(
    tmp_path: Path, screen: Screen, last: str, analyzed: bool
) -> None:
    """Refused with 2 by the folder's own guard, it finds the traces of the one that is at work."""
    of_another = f"""
import json, os, sys
run_dir = os.path.join(*(os.environ["TRAINER_" + name] for name in ("RESULTS", "COMPARISON", "RUN")))
os.makedirs(run_dir + "/traces")
json.dump({{}}, open(run_dir + "/traces/manifest.json", "w"))
line = {{"t": 1.0, "attempt": 1, "event": "{last}", "exit_code": 12}}
open(run_dir + "/attempts.jsonl", "w").write(json.dumps(line) + "\\n")
sys.exit(2)
"""
    chart = write_chart(tmp_path / "tiny", train=of_another)
    assert [end.code for end in run(tmp_path, screen, chart)] == [2]
    assert (tmp_path / "out/runs/demo/tiny/analysis").exists() is analyzed


def test_keep_going_and_codes_that_a_cluster_would_try_again(
    chart: Path, tmp_path: Path, screen: Screen
) -> None:
    other = write_chart(tmp_path / "other")
    ends = run(tmp_path, screen, chart, other, settings=["run.config.fault=143"], keep_going=True)
    assert [end.code for end in ends] == [143, 143]
    assert (
        "a cluster would start it again (restartPolicy ExitCode); a rehearsal does not: the same command again"
        in screen[1]()
    )


def test_a_refused_setting_leaves_nothing(chart: Path, tmp_path: Path, screen: Screen) -> None:
    ends = run(tmp_path, screen, chart, settings=["run.config.fault=refuse"])
    assert [end.code for end in ends] == [2]
    assert "  | TRAINER_LR=-1: expected a number above 0" in screen[1]()
    assert "log:" not in screen[1]()
    assert not (tmp_path / "out").exists()
    assert next_commands(ends, tmp_path) == []


def test_a_refused_setting_gives_the_old_run_back(chart: Path, tmp_path: Path, screen: Screen) -> None:
    run(tmp_path, screen, chart)
    run_dir = tmp_path / "out/runs/demo/tiny"
    old = (run_dir / "summary.json").stat().st_ino
    ends = run(tmp_path, screen, chart, settings=["run.config.fault=refuse"], replace=True)
    assert [end.code for end in ends] == [2]
    assert (run_dir / "summary.json").stat().st_ino == old
    assert run(tmp_path, screen, chart, replace=True)[0].code == 0
    assert (run_dir / "summary.json").stat().st_ino != old
    assert [entry.name for entry in run_dir.parent.iterdir() if entry.name != "tiny"] == [".logs"]


def test_a_failed_analysis_is_a_failed_run(tmp_path: Path, screen: Screen) -> None:
    chart = write_chart(tmp_path / "tiny", analyze="raise SystemExit(3)")
    assert run(tmp_path, screen, chart)[0].code == 3
    assert "tiny: training done in" in screen[1]()
    assert "analysis failed with exit code 3" in screen[1]()


def test_what_is_wrong_is_found_before_anything_starts(chart: Path, tmp_path: Path, screen: Screen) -> None:
    with pytest.raises(ValueError, match="nope: no such chart"):
        run(tmp_path, screen, chart, tmp_path / "nope")
    assert not (tmp_path / "out").exists()


def test_the_next_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratlab.rehearse.summary.name_program", lambda: ".venv/bin/stratlab")
    (tmp_path / "a b" / "x").mkdir(parents=True)
    end = RunEnd("x", tmp_path / "a b" / "x", 0)
    lines = next_commands([end, end], Path("/m"))
    assert f"compare them:  .venv/bin/stratlab compare '{tmp_path}/a b' --mlflow /m" in lines
    assert lines[-1] == "see them:      .venv/bin/stratlab mlflow /m"
    monkeypatch.chdir(tmp_path)
    assert next_commands([end, end], tmp_path / "mlflow") == [
        *(2 * ["run directory: a b/x"]),
        "compare them:  .venv/bin/stratlab compare 'a b' --mlflow mlflow",
        "see them:      .venv/bin/stratlab mlflow mlflow",
    ]
    assert not any("compare" in line for line in next_commands([end], Path("/m")))


def test_what_is_foreseen_of_memory_is_said_before_anything_starts(tmp_path: Path, screen: Screen) -> None:
    asked = {"MODEL": "vit_huge", "STRATEGY": "single", "PRECISION": "bf16", "MICRO_BATCH_SIZE": "512"}
    asked["GLOBAL_BATCH_SIZE"] = "1024"
    lines = "".join(
        f'                - {{name: TRAINER_{name}, value: "{value}"}}\n' for name, value in asked.items()
    )
    job = JOB.replace("              volumeMounts:", f"{lines}              volumeMounts:")
    run(tmp_path, screen, write_chart(tmp_path / "tiny", job=job))
    shown = " ".join(screen[1]().split())
    assert "tiny: foreseen for GPUs of 79.2 GiB: does not fit, " in shown
    assert shown.index("foreseen") < shown.index("4 steps")


def test_a_run_is_told_to_a_program(chart: Path, tmp_path: Path, screen: Screen) -> None:
    [end] = run(tmp_path, screen, chart)
    told = describe_end(end)
    assert told["run_dir"] == str(tmp_path / "out/runs/demo/tiny") and told["comparison"] == "demo"
    assert (told["exit_code"], told["reason"]) == (0, "done")
    assert told["report"] == f"{told['run_dir']}/analysis/report.html"
    assert (told["steps"], told["world_size"], told["device_type"]) == (4, 1, "cpu")
    assert (told["samples_per_s"], told["train_loss"], told["test_accuracy_pct"]) == (800.0, 0.25, None)
    failed = describe_end(RunEnd("gone", tmp_path / "nowhere/gone", 2))
    assert failed["report"] is None and failed["steps"] is None and failed["reason"] is None


ASKING = JOB.replace(
    "              volumeMounts:",
    """                - {name: TRAINER_ACCELERATOR, value: some/gpu}
              volumeMounts:""",
    1,
)


def test_an_accelerator_is_spoken_of_where_the_user_has_named_one(tmp_path: Path, screen: Screen) -> None:
    chart = write_chart(tmp_path / "tiny", job=ASKING)
    run(tmp_path, screen, chart)
    assert "accelerator" not in screen[1](), "that of the chart"
    run(tmp_path, screen, chart, settings=["run.config.steps=2,run.accelerator=some/gpu"], replace=True)
    assert screen[1]().count("run.accelerator=some/gpu is not asked for in a rehearsal") == 1
    values = tmp_path / "values.yaml"
    values.write_text("run: {accelerator: some/gpu}")
    run(tmp_path, screen, chart, values=[values], replace=True)
    assert screen[1]().count("run.accelerator=some/gpu is not asked for in a rehearsal") == 2


def test_a_long_check_is_told_ever_more_rarely(
    chart: Path, tmp_path: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(runs: object, env: object, options: object, waiting: Callable[[float], object]) -> Answers:
        for seconds in range(5, 65, 5):
            waiting(seconds)
        return Answers({})

    monkeypatch.setattr("stratlab.rehearse.rehearsal.ask_trainer", ask)
    monkeypatch.setattr("stratlab.rehearse.rehearsal.TRAINER", ("tiny",))
    pod = Pod("tiny", "node0", (Command("pytorch", ("tiny",), {}, None),), ())
    check_settings([PlannedRun("tiny", tmp_path, [pod], None, "Never")], False, screen[0])
    assert screen[1]().count("still checking them") == 3
