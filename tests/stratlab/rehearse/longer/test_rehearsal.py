"""Runs of a tiny chart from helm to their report, and what stays when something goes wrong.
What comes of rendered charts, and what a rehearsal refuses before anything starts."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from stratlab.helm import find_helm, render_chart
from stratlab.machine import Interrupted, Processes, build_machine_env
from stratlab.pod_commands import Command, Pod
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
from stratlab.rehearsal_plan import RehearsalRequest, build_planned_run, build_rehearsal_plan
from tests.codes import find_codes
from tests.stratlab.raised import raised
from tests.stratlab.rehearse.conftest import JOB, TRAIN, no_server, write_chart


def run(tmp_path, screen, *charts, fault="", **options):
    options["settings"] = [f"run.config.fault={fault}"]
    request = RehearsalRequest(
        charts=charts, results=tmp_path / "out/runs", mlflow=tmp_path / "out/mlflow", **options
    )
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

    def stop(pods, processes, env, logs, tick):
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
    assert f"log: {tmp_path}/out/runs/demo/.logs/tiny/node0.log" in shown and "restartPolicy" not in shown


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


def pod(name, *scripts):
    commands = tuple(Command("c", ("python", "-c", script), {"NAME": name}, None) for script in scripts)
    return Pod(name, name, commands, ())


def run_test_replicas(pods, tmp_path, after_failure_s=30.0):
    logs = {each.name: tmp_path / f"{each.name}.log" for each in pods}
    processes = Processes()
    try:
        env = build_machine_env(os.environ)
        return run_pods(pods, processes, env, logs, lambda: None, after_failure_s=after_failure_s)
    finally:
        assert not processes.members()


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


DDP = Path("charts/ddp")
URI = "http://127.0.0.1:1"


def plan(tmp_path, *charts, **options):
    given = {"results": tmp_path / "runs", "mlflow": tmp_path / "mlflow"} | options
    return build_rehearsal_plan(RehearsalRequest(charts=charts, **given), URI)


def refused(tmp_path, *charts, **options):
    failure = raised(plan, tmp_path, *charts, **options)
    return find_codes(failure), str(failure)


def test_nodes_processes_folder_and_tracking_uri_reach_the_pods(chart, tmp_path):
    (run,) = plan(tmp_path, chart, nodes=2, processes=3)
    assert run.run_dir == tmp_path / "runs" / "demo" / "tiny"
    assert [pod.name for pod in run.pods] == ["tiny-worker-0", "tiny-worker-1"]
    env = run.pods[1].commands[0].env
    assert (env["PET_NNODES"], env["PET_NPROC_PER_NODE"]) == ("2:2", "3")
    assert env["MLFLOW_TRACKING_URI"] == URI and run.pods[0].claims == (tmp_path / "runs",)
    assert run.restart_policy == "ExitCode"
    assert run.analysis and [command.container for command in run.analysis.commands] == ["wait", "analyze"]
    assert plan(tmp_path, chart, name="other")[0].run_dir.name == "other"


def test_what_is_asked_for_wrongly_is_refused(chart, tmp_path):
    broken = [write_chart(tmp_path / name, job="{{ fail `not this` }}") for name in ("broken", "other")]
    for charts, options, code in (
        ((chart, chart), {}, "SL-chart-twice"),
        ((chart, chart), {"name": "x"}, "SL-name-many-charts"),
        ((chart,), {"name": ""}, "SL-name-empty"),
        ((chart,), {"values": (tmp_path,)}, "SL-values-no-file"),
        ((DDP,), {"results": Path("/etc/runs")}, "SL-results-no-volume"),
        ((chart, tmp_path / "nope"), {}, "SL-no-such-chart"),
    ):
        assert refused(tmp_path, *charts, **options)[0] == [code]
    told = refused(tmp_path, *broken)[1]
    assert "broken" in told and "other" in told and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "code", "named"),
    [
        ("kind: ServiceAccount", "kind: ConfigMap", "SL-unknown-kind", "ConfigMap tiny (v1)"),
        ("kind: PyTorchJob", "kind: MPIJob", "SL-other-workload", "MPIJob tiny (kubeflow.org/v1)"),
        (
            "  nprocPerNode:",
            "  runPolicy: {suspend: true}\n  nprocPerNode:",
            "SL-run-suspended",
            "run.suspend",
        ),
        ("kind: ServiceAccount", "apiVersion: batch/v1\nkind: Job", "SL-chart-no-run", "2 Job"),
        ("{{ .Values.run.results.mountPath | quote }}}", "/r}", "SL-results-not-followed", "'/r'"),
        ("name: TRAINER_RUN", "name: TRAINER_NAME", "SL-no-trainer-run", "TRAINER_RUN"),
    ],
)
def test_what_a_rehearsal_does_not_know_is_refused_by_name(tmp_path, old, new, code, named):
    assert old in JOB
    job = JOB.replace(old, new, 1).replace("apiVersion: v1\napiVersion", "apiVersion")
    settings = [f"run.results.mountPath={tmp_path}"]
    objects = render_chart(find_helm(), write_chart(tmp_path / "tiny", job=job), "tiny", settings=settings)
    failure = raised(build_planned_run, "tiny", objects, tmp_path)
    assert find_codes(failure) == [code] and named in str(failure)


def test_a_shipped_chart_needs_no_token_and_no_login(tmp_path):
    (run,) = plan(tmp_path, DDP, settings=["run.mlflow.existingSecret=login"])
    assert run.analysis and run.analysis.claims == (tmp_path / "runs",)
    assert run.pods[0].commands[0].env["MLFLOW_TRACKING_URI"] == URI
    settings = ["run.secrets[0].name=HF_TOKEN,run.secrets[0].secret=hub,run.secrets[0].key=token"]
    codes, told = refused(tmp_path, DDP, settings=settings)
    assert codes == ["SL-value-of-cluster"] and "HF_TOKEN" in told and "hub" in told


def test_what_lies_on_the_volume_is_looked_for_in_the_folder(tmp_path):
    def environment(*settings):
        return plan(tmp_path, DDP, settings=settings)[0].pods[0].commands[-1].env

    there = str(tmp_path / "runs")
    settings = ["run.config.dataset_path=/results/_prepared/pets", "run.config.model_path=/resultsets/vit"]
    env = environment(*settings, "run.env[0].name=TORCH_HOME,run.env[0].value=/results/_prepared/torch")
    assert env["TRAINER_RESULTS"] == there and env["TRAINER_DATASET_PATH"] == f"{there}/_prepared/pets"
    assert env["TORCH_HOME"] == f"{there}/_prepared/torch" and env["TRAINER_MODEL_PATH"] == "/resultsets/vit"
    env = environment(*settings, "run.results.mountPath=/resultsets")
    assert env["TRAINER_DATASET_PATH"] == "/results/_prepared/pets"
    assert env["TRAINER_MODEL_PATH"] == f"{there}/vit"
    env = environment(f"run.results.mountPath={tmp_path}", f"run.config.dataset_path={there}/a")
    assert env["TRAINER_DATASET_PATH"] == f"{there}/a", "what lies in the folder stays where it is"
