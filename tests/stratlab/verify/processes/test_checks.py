"""A whole run is found whole, in its folder and in a real MLflow; whatever is taken away is named."""

import json
import re
import shutil
from pathlib import Path

import pytest
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from stratlab.machine import free_port
from stratlab.verify import verify_run
from stratlab_spec.run_directory import RunDirectory, name_metric
from tests.codes import find_codes
from tests.redirecting_server import run_redirect
from tests.stratlab.compare.building import edit
from tests.stratlab.example_run import build_run_dir, write_json
from tests.stratlab.raised import raised
from trainer.launch.ledger import Ledger

OF_FOLDER = ("run directory", "ranks", "device", "traces", "report")


def build_whole_run(folder, **changes):
    run = build_run_dir(folder / "demo", "ddp", "ddp", **changes)
    (run / "analysis" / "tables").mkdir()
    for name in ("report.html", "summary.md", "merged_trace.json.gz", "tables/schema.json"):
        (run / "analysis" / name).write_text("<html>")
    edit(
        run / "analysis" / "report.json",
        lambda report: report.update(merged={"file": "merged_trace.json.gz"}),
    )
    (run / "mlflow.json").unlink()
    return run


def log_run(run, uri, *, status="FINISHED", skip="", report=True, older=False):
    """What the trainer's sender and the analysis leave in MLflow, or those of an older version.

    Args:
        skip: loses the last point of this metric.
    """
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("verify")
    experiment_id = experiment.experiment_id if experiment else client.create_experiment("verify")
    run_id = str(client.create_run(experiment_id).info.run_id)
    metrics = [
        Metric(key if older else name_metric(key), value, int(fields["t"] * 1000), fields["step"])
        for fields in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        for key, value in fields.items()
        if key not in ("t", "step", "attempt") and type(value) in (int, float)
    ]
    if skip:
        metrics.remove([metric for metric in metrics if metric.key == skip][-1])
    for start in range(0, len(metrics), 1000):
        client.log_batch(run_id, metrics=metrics[start : start + 1000])
    for name in ("report.html", "report.json", "summary.md") * report:
        place = None if name == "report.html" and not older else "analysis"
        client.log_artifact(run_id, str(run / "analysis" / name), place)
    client.log_metric(run_id, "detail/trace/step_ms", 1.0)  # the analysis adds its own
    client.set_terminated(run_id, status)
    write_json(run / "mlflow.json", {"tracking_uri": uri, "experiment_id": experiment_id, "run_id": run_id})
    return run_id


def find(checks, name):
    return next(check for check in checks if check.name == name)


def find_failed(checks):
    return {check.name: find_codes(check.text) for check in checks if check.state == "failed"}


def test_a_whole_run_passes_every_check_and_what_mlflow_lacks_is_named(mlflow_server, tmp_path, monkeypatch):
    run = build_whole_run(tmp_path)
    run_id = log_run(run, mlflow_server)
    checks = list(verify_run(run, mlflow_server))
    names = (*OF_FOLDER, "mlflow run", "mlflow metrics", "mlflow report")
    assert {check.name: check.state for check in checks} == dict.fromkeys(names, "ok")
    assert run_id in find(checks, "mlflow run").text
    assert list(verify_run(run, None)) == checks, "mlflow.json names the server"
    log_run(run, mlflow_server, older=True)
    assert {check.name: check.state for check in verify_run(run, mlflow_server)} == dict.fromkeys(names, "ok")
    monkeypatch.delenv("MLFLOW_ALLOW_HTTP_REDIRECTS", raising=False)
    with run_redirect(mlflow_server) as uri:
        check = find(list(verify_run(run, tracking_uri=uri)), "mlflow")
    assert find_codes(check.text) == ["SL-verify-mlflow-failed"] and mlflow_server in check.text
    log_run(run, mlflow_server, status="FAILED", skip="loss", report=False)
    checks = list(verify_run(run, mlflow_server))
    assert [*find_failed(checks)] == ["mlflow run", "mlflow metrics", "mlflow report"]
    assert re.findall(r"\d+", find(checks, "mlflow metrics").text) == ["59", "60"]


def lose(name):
    return lambda run: (run / name).unlink()


def replace(name, old, new):
    return lambda run: (run / name).write_text((run / name).read_text().replace(old, new)) and None


@pytest.mark.parametrize(
    ("damage", "name", "code", "named"),
    [
        (lose("summary.json"), "run directory", "files", "summary.json"),
        (replace("attempts.jsonl", '"exit_code": 0', '"exit_code": 10'), "run directory", "files", "10"),
        (lose("ranks/rank1.json"), "ranks", "ranks", "1 of 2"),
        (replace("ranks/rank0.json", '"done": true', '"done": false'), "ranks", "ranks", "0"),
        (replace("traces/rank1_trace.json", "}]}", "}]"), "traces", "trace-bytes", "rank1_trace.json"),
        (replace("traces/manifest.json", '"complete": true', '"complete": 0'), "traces", "manifest-part", "2"),
        (lambda run: shutil.rmtree(run / "traces"), "traces", "no-manifest", "traces/manifest.json"),
        (lambda run: (run / "analysis/report.html").write_text(""), "report", "report", "report.html"),
        (lose("analysis/tables/schema.json"), "report", "report", "tables/schema.json"),
        (lose("analysis/merged_trace.json.gz"), "report", "report", "merged_trace.json.gz"),
        (
            lambda run: edit(run / "config.json", lambda config: config["config"].update(accelerator="gpu")),
            "device", "device", "gpu",
        ),
    ],
)  # fmt: skip
def test_what_the_folder_lacks_is_named(damage, name, code, named, tmp_path):
    run = build_whole_run(tmp_path)
    damage(run)
    checks = list(verify_run(run, None))
    assert find_failed(checks) == {name: [f"SL-verify-{code}"]} and named in find(checks, name).text


def test_without_mlflow_or_without_traces_nothing_is_missing(tmp_path):
    run = build_whole_run(tmp_path, profile_steps=0)
    states = {check.name: check.state for check in verify_run(run, None)}
    assert states == {**dict.fromkeys(OF_FOLDER, "ok"), "traces": "skipped", "mlflow": "skipped"}
    shutil.rmtree(run / "analysis")
    assert find(list(verify_run(run, None)), "report").state == "failed"
    assert find(list(verify_run(run, None, with_report=False)), "report").state == "skipped"


def test_a_server_that_is_away_or_knows_nothing_is_a_failure_but_for_one_of_a_rehearsal(
    mlflow_server, tmp_path, monkeypatch
):
    run = build_whole_run(tmp_path / "runs")
    assert find_failed(list(verify_run(run, mlflow_server))) == {"mlflow": ["SL-verify-mlflow-no-run"]}
    gone = f"http://127.0.0.1:{free_port()}"
    write_json(run / "mlflow.json", {"tracking_uri": gone, "run_id": "0" * 32})
    for uri in (mlflow_server, gone):
        last = list(verify_run(run, uri))[-1]
        assert find_codes(last.text) == ["SL-verify-mlflow-failed"] and uri in last.text
    last = list(verify_run(run, None))[-1]
    assert find_codes(last.text) == ["SL-verify-mlflow-away"], "one's own server, which is down"
    (run.parent / ".logs" / run.name).mkdir(parents=True)
    last = list(verify_run(run, None))[-1]
    assert last.state == "skipped" and "mlflow FOLDER --port 5000" in last.text, "a rehearsal's"
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "mlflow.db").touch()
    assert f"mlflow {tmp_path}/mlflow --port 5000" in list(verify_run(run, None))[-1].text
    monkeypatch.chdir(run.parent)
    assert list(verify_run(Path(run.name), None))[-1].state == "skipped", "wherever it is called from"
    write_json(run / "mlflow.json", {"tracking_uri": "http://mlflow.invalid:1", "run_id": "0" * 32})
    assert list(verify_run(run, None))[-1].state == "failed", "a server that the run was told to send to"


def test_the_verb_ends_with_1_when_a_check_fails(tmp_path, monkeypatch, stratlab):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = build_whole_run(tmp_path)
    assert stratlab("verify", run)[0] == 0
    lose("ranks/rank1.json")(run)
    code, out, _ = stratlab("verify", run)
    assert code == 1 and any(line.startswith("failed  ranks: ") for line in out.splitlines())
    code, out, _ = stratlab("verify", run, "--json")
    found = {check["name"]: check for check in json.loads(out)}
    assert code == 1 and found["ranks"]["state"] == "failed" and "1 of 2" in found["ranks"]["text"]


def test_what_is_no_run_says_why_pods_were_refused_and_which_runs_there_are(tmp_path):
    folder = RunDirectory(tmp_path, "demo", "ddp")
    Ledger(folder, "ddp-worker-0").record_refusal(4, "run.accelerator=nvidia.com/gpu: none visible")
    build_run_dir(tmp_path / "other", "fsdp", "fsdp")
    for place, named in ((folder.path, "none visible"), (tmp_path / "other", "fsdp")):
        refused = raised(list, verify_run(place, None))
        assert find_codes(refused)[-1] == "SL-verify-no-run" and named in str(refused)
