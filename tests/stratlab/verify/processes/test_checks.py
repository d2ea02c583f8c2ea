"""A whole run is found whole, in its folder and in a real MLflow; whatever is taken away is named."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from stratlab import cli
from stratlab.machine.processes import free_port
from stratlab.user_error import NothingThere, UserError
from stratlab.verify.checks import Check, verify_run
from stratlab.verify.mlflow_points import compare_points, read_points
from tests.redirecting_server import run_redirect
from tests.stratlab.example_run import build_run_dir, write_json


def build_whole_run(folder: Path, **changes: object) -> Path:
    run = build_run_dir(folder / "demo", "ddp", "ddp", **changes)  # type: ignore[arg-type]
    (run / "analysis" / "tables").mkdir()
    for name in ("report.html", "summary.md", "merged_trace.json.gz", "tables/schema.json"):
        (run / "analysis" / name).write_text("<html>")
    report = json.loads((run / "analysis" / "report.json").read_text())
    write_json(run / "analysis" / "report.json", report | {"merged": {"file": "merged_trace.json.gz"}})
    (run / "mlflow.json").unlink()
    return run


def log_run(run: Path, uri: str, *, status: str = "FINISHED", skip: str = "", report: bool = True) -> str:
    """What the trainer's sender and the analysis leave in MLflow; `skip` loses the last point of one metric."""
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("verify")
    experiment_id = experiment.experiment_id if experiment else client.create_experiment("verify")
    run_id = client.create_run(experiment_id).info.run_id
    metrics = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        fields = json.loads(line)
        for key, value in fields.items():
            if key not in ("t", "step", "attempt") and type(value) in (int, float):
                metrics.append(Metric(key, value, int(fields["t"] * 1000), fields["step"]))
    if skip:
        metrics.remove([metric for metric in metrics if metric.key == skip][-1])
    for start in range(0, len(metrics), 1000):
        client.log_batch(run_id, metrics=metrics[start : start + 1000])
    if report:
        for name in ("report.html", "report.json", "summary.md"):
            client.log_artifact(run_id, str(run / "analysis" / name), "analysis")
    client.log_metric(run_id, "trace/step_ms", 1.0)  # the analysis adds its own
    client.set_terminated(run_id, status)
    write_json(run / "mlflow.json", {"tracking_uri": uri, "experiment_id": experiment_id, "run_id": run_id})
    return run_id


def states(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.state for check in checks}


def text_of(checks: list[Check], name: str) -> str:
    return next(check.text for check in checks if check.name == name)


def test_a_whole_run_passes_every_check(mlflow_server: str, tmp_path: Path) -> None:
    run = build_whole_run(tmp_path)
    run_id = log_run(run, mlflow_server)
    checks = list(verify_run(run, mlflow_server))
    assert states(checks) == {
        "run directory": "ok",
        "ranks": "ok",
        "device": "ok",
        "traces": "ok",
        "report": "ok",
        "mlflow run": "ok",
        "mlflow metrics": "ok",
        "mlflow report": "ok",
    }
    assert text_of(checks, "mlflow run") == f"{run_id} at {mlflow_server} is FINISHED"
    assert list(verify_run(run, None)) == checks, "mlflow.json names the server"


def test_what_mlflow_lacks_is_named(mlflow_server: str, tmp_path: Path) -> None:
    run = build_whole_run(tmp_path)
    log_run(run, mlflow_server, status="FAILED", skip="loss", report=False)
    checks = list(verify_run(run, mlflow_server))
    assert [check.name for check in checks if check.state == "failed"] == [
        "mlflow run",
        "mlflow metrics",
        "mlflow report",
    ]
    steps = len([line for line in (run / "metrics.jsonl").read_text().splitlines() if '"train"' in line])
    assert text_of(checks, "mlflow metrics") == f"loss: {steps - 1} of {steps} points are there"


def lose_summary(run: Path) -> None:
    (run / "summary.json").unlink()


def lose_rank(run: Path) -> None:
    (run / "ranks" / "rank1.json").unlink()


def end_rank_early(run: Path) -> None:
    path = run / "ranks" / "rank0.json"
    path.write_text(path.read_text().replace('"done": true', '"done": false'))


def cut_trace(run: Path) -> None:
    path = run / "traces" / "rank1_trace.json"
    path.write_bytes(path.read_bytes()[:-1])


def forget_trace(run: Path) -> None:
    path = run / "traces" / "manifest.json"
    path.write_text(path.read_text().replace('"complete": true', '"complete": false'))


def empty_report(run: Path) -> None:
    (run / "analysis" / "report.html").write_text("")


def lose_from_analysis(name: str) -> Callable[[Path], None]:
    return lambda run: (run / "analysis" / name).unlink()


def fail_run(run: Path) -> None:
    path = run / "attempts.jsonl"
    path.write_text(path.read_text().replace('"exit_code": 0', '"exit_code": 10'))


@pytest.mark.parametrize(
    ("damage", "name", "sentence"),
    [
        (lose_summary, "run directory", "summary.json is missing"),
        (fail_run, "run directory", "failed: done (exit code 10)"),
        (lose_rank, "ranks", "1 of 2 are done, not 1"),
        (end_rank_early, "ranks", "1 of 2 are done, not 0"),
        (cut_trace, "traces", "rank1_trace.json: "),
        (forget_trace, "traces", "the manifest is not complete, it names 2 files"),
        (lambda run: shutil.rmtree(run / "traces"), "traces", "traces/manifest.json is missing"),
        (empty_report, "report", "missing or empty: analysis/report.html"),
        (lose_from_analysis("summary.md"), "report", "missing or empty: analysis/summary.md"),
        (lose_from_analysis("tables/schema.json"), "report", "missing or empty: analysis/tables/schema.json"),
        (
            lose_from_analysis("merged_trace.json.gz"),
            "report",
            "missing or empty: analysis/merged_trace.json.gz",
        ),
    ],
)
def test_what_the_folder_lacks_is_named(
    damage: Callable[[Path], None], name: str, sentence: str, tmp_path: Path
) -> None:
    run = build_whole_run(tmp_path)
    assert {check.state for check in verify_run(run, None)} == {"ok", "skipped"}
    damage(run)
    checks = list(verify_run(run, None))
    assert [check.name for check in checks if check.state == "failed"] == [name]
    assert sentence in text_of(checks, name)


def test_without_mlflow_or_without_traces_nothing_is_missing(tmp_path: Path) -> None:
    run = build_whole_run(tmp_path, profile_steps=0)
    checks = list(verify_run(run, None))
    assert states(checks) == {
        "run directory": "ok",
        "ranks": "ok",
        "device": "ok",
        "traces": "skipped",
        "report": "ok",
        "mlflow": "skipped",
    }
    assert "not asked" in text_of(checks, "mlflow")
    plain = build_whole_run(tmp_path / "other")
    shutil.rmtree(plain / "analysis")
    assert states(list(verify_run(plain, None)))["report"] == "failed"
    assert states(list(verify_run(plain, None, with_report=False)))["report"] == "skipped"


def test_a_server_that_is_away_or_knows_nothing_is_a_failure(mlflow_server: str, tmp_path: Path) -> None:
    run = build_whole_run(tmp_path)
    checks = list(verify_run(run, mlflow_server))
    assert "mlflow.json names no run" in text_of(checks, "mlflow")
    write_json(run / "mlflow.json", {"tracking_uri": mlflow_server, "run_id": "0" * 32})
    for uri in (mlflow_server, f"http://127.0.0.1:{free_port()}"):
        last = list(verify_run(run, uri))[-1]
        assert (last.name, last.state) == ("mlflow", "failed") and uri in last.text


def test_a_rehearsal_s_server_that_has_ended_is_not_asked_and_how_to_start_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = build_whole_run(tmp_path / "runs")
    gone = f"http://127.0.0.1:{free_port()}"
    write_json(run / "mlflow.json", {"tracking_uri": gone, "run_id": "0" * 32})
    last = list(verify_run(run, None))[-1]
    assert last.state == "failed", "one's own server, which is down"
    assert last.text == f"nothing answers at {gone}, which this machine alone reaches"
    (run.parent / ".logs" / run.name).mkdir(parents=True)
    last = list(verify_run(run, None))[-1]
    assert last.state == "skipped", "a rehearsal's, with its store elsewhere"
    assert "the folder that --mlflow named, again" in last.text and "mlflow FOLDER --port 5000" in last.text
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "mlflow.db").touch()
    last = list(verify_run(run, None))[-1]
    assert last.state == "skipped" and last.text.startswith(f"not asked: {gone} has ended")
    assert f"stratlab mlflow {tmp_path}/mlflow --port 5000) and give --tracking-uri" in last.text
    monkeypatch.chdir(run.parent)
    assert list(verify_run(Path(run.name), None))[-1].state == "skipped", "wherever it is called from"
    write_json(run / "mlflow.json", {"tracking_uri": "http://mlflow.invalid:1", "run_id": "0" * 32})
    assert list(verify_run(run, None))[-1].state == "failed", "a server that the run was told to send to"


def test_points_are_those_of_the_sender() -> None:
    lines = [
        {"t": 1.5, "attempt": 1, "step": 1, "kind": "train", "loss": 2, "profiled": False},
        {"t": 1.5, "attempt": 2, "step": 1, "kind": "train", "loss": 2, "profiled": False},
        {"t": 2.5, "attempt": 2, "step": 1, "kind": "train", "loss": 2, "note": "text"},
    ]
    points = read_points(lines)
    assert points == {"loss": {(1, 1500, 2.0), (1, 2500, 2.0)}}
    held = {"loss": {(1, 1500, 2.0), (1, 2500, 2.5), (9, 9, 9.0)}}
    assert list(compare_points(points, held)) == [
        "loss: 1 of 2 points are there, and 2 that are not in metrics.jsonl"
    ]


def test_a_redirect_is_not_followed_and_the_right_address_is_named(
    mlflow_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_HTTP_REDIRECTS", raising=False)
    run = build_whole_run(tmp_path)
    log_run(run, mlflow_server)
    with run_redirect(mlflow_server) as uri:
        (check,) = [each for each in verify_run(run, tracking_uri=uri) if each.name == "mlflow"]
    assert check.state == "failed" and check.text.endswith(f"set run.mlflow.trackingUri to {mlflow_server}")


def test_the_verb_ends_with_1_when_a_check_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["stratlab", "verify", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0)

    run = build_whole_run(tmp_path)
    assert call(str(run)) == 0
    assert f"ok      run directory: {run}" in capsys.readouterr().out
    lose_rank(run)
    assert call(str(run)) == 1
    assert "failed  ranks: 1 of 2 are done, not 1" in capsys.readouterr().out
    assert call(str(run), "--json") == 1
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert found["ranks"] == {"name": "ranks", "state": "failed", "text": "1 of 2 are done, not 1"}
    assert call(str(tmp_path / "nope")) == 3
    assert "nope: no such folder" in capsys.readouterr().err


def test_losses_that_were_not_finite_are_told(tmp_path: Path) -> None:
    run = build_whole_run(tmp_path)
    assert "losses" not in states(list(verify_run(run, None)))
    summary = json.loads((run / "summary.json").read_text())
    write_json(run / "summary.json", summary | {"not_finite_steps": 3})
    found = states(list(verify_run(run, None)))
    assert found["losses"] == "warning" and "failed" not in found.values()


def test_a_run_that_asked_for_gpus_and_trained_on_the_cpu_is_not_whole(tmp_path: Path) -> None:
    run = build_whole_run(tmp_path)
    config = json.loads((run / "config.json").read_text())
    config["config"]["accelerator"] = "nvidia.com/gpu"
    for device, state in (("cuda", "ok"), ("cpu", "failed")):
        config["resolved"]["device_type"] = device
        write_json(run / "config.json", config)
        (check,) = [check for check in verify_run(run, None) if check.name == "device"]
        assert check.state == state
    assert "run.accelerator=nvidia.com/gpu was asked for, and it trained on cpu" in check.text


def test_a_pod_that_was_refused_says_why_there_is_no_run(tmp_path: Path) -> None:
    from trainer.launch.ledger import Ledger
    from trainer.record.run_directory import RunDirectory

    folder = RunDirectory(tmp_path, "demo", "ddp")
    Ledger(folder, "ddp-worker-0").record_refusal(4, "run.accelerator=nvidia.com/gpu: none visible")
    with pytest.raises(UserError) as refusal:
        list(verify_run(folder.path, None))
    assert str(refusal.value).endswith(
        "; pod ddp-worker-0: accelerators asked for, not visible (exit code 4): "
        "run.accelerator=nvidia.com/gpu: none visible"
    )


def test_of_a_comparison_its_runs_are_named(tmp_path: Path) -> None:
    for name in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "demo", name, name)
    with pytest.raises(NothingThere, match="it holds the runs ddp, fsdp: name one"):
        list(verify_run(tmp_path / "demo", None))
