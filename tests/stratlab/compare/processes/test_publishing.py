"""A comparison in a pod, its report brought back. A process of this machine plays the pod, see fake_kubelet.

The comparison's report in MLflow, against a real server on loopback.
Against a real MLflow server on loopback."""

import json
import os
import sys
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from stratlab import UserError
from stratlab.cluster import connection
from stratlab.compare import publishing as comparison_pod
from stratlab.compare.comparison import compare
from stratlab.compare.publishing import (
    NOT_THERE,
    NotLogged,
    build_options,
    compare_on_cluster,
    describe,
    describe_compared,
    log_comparison,
    log_for_user,
    unpack_payload,
)
from stratlab.compare.report_files import FILES, write_report
from stratlab.compare.run_sources import NOT_IN_MLFLOW, _fetch, load_experiment, load_runs
from stratlab.drawing import drop_file_links
from stratlab.machine import free_port
from stratlab.run_directory.files import PAGE
from stratlab.tracking import find_places
from tests.codes import find_codes
from tests.redirecting_server import run_redirect
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.cluster.fake_kubelet import PODS, run_kubelet
from tests.stratlab.compare.building import build
from tests.stratlab.example_run import build_run_dir, write_json
from tests.stratlab.raised import raised


@pytest.fixture
def lab():
    with run_kubelet(FakeApi()) as pair:
        yield pair


@pytest.fixture
def volume(tmp_path):
    return build(tmp_path / "volume" / "demo", ["ddp", "fsdp"], device="cpu").parent


def bring(lab, volume, comparison, output):
    place = {"claim": "stratlab-results", "mount": str(volume), "image": "lab"}
    return compare_on_cluster(
        lab[0], "lab", comparison, output=output, progress=lambda sentence: None, **place
    )


def test_the_report_is_on_the_volume_and_here_and_nothing_else_is_replaced(lab, volume, tmp_path):
    output = tmp_path / "here"
    report = bring(lab, volume, "demo", output)
    assert [row["run"] for row in report["runs"]] == ["ddp", "fsdp"]
    assert {path.name for path in output.iterdir()} == {*FILES}
    for name in FILES:
        there = (volume / "demo" / "report" / name).read_text()
        page = name == "report.html"  # its links lead to what is not here
        assert (output / name).read_text() == (drop_file_links(there) if page else there)
    assert "rank0.log" in (volume / "demo" / "report" / "report.html").read_text()
    assert lab[1].created[0]["spec"]["containers"][0]["volumeMounts"][0]["readOnly"] is False
    assert lab[1].api.collections[PODS] == {}
    (lines,) = lab[1].api.logs.values()
    texts = [line.partition(" ")[2] for line in lines]
    start = next(number for number, text in enumerate(texts) if text.startswith("stratlab-report "))
    payload = "\n".join([texts[start].removeprefix("stratlab-report "), *texts[start + 1 :]]).encode()
    assert set(unpack_payload(payload)) == {*FILES}
    for cut in (payload[:-200], payload.replace(b"A", b"B", 1), b"", b"12 ab\n!!!"):
        assert find_codes(raised(unpack_payload, cut)) == ["SL-report-cut"]
    (output / "comparison.csv").write_text("of an earlier report")
    (output / "thesis.tex").write_text("years")  # somebody works where the first report went: --output .
    bring(lab, volume, "demo", output)
    assert sorted(path.name for path in output.iterdir()) == sorted([*FILES, "thesis.tex"])
    assert (output / "comparison.csv").read_text() != "of an earlier report"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "volume"], "no temporary folder stays"


def test_what_is_refused(lab, volume, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years")
    for comparison, output, code in (
        ("demo", "mine", ["SL-output-taken"]),
        ("../demo", "here", ["SL-on-cluster-name"]),
    ):
        assert find_codes(raised(bring, lab, volume, comparison, tmp_path / output)) == code
        assert lab[1].created == [], "before a pod is started"
    unknown = raised(bring, lab, volume, "dmeo", tmp_path / "here")
    assert f"{volume}/dmeo" in str(unknown) and "stratlab-results" in str(unknown)
    monkeypatch.setattr(comparison_pod, "LARGEST_MIB", 0)
    large = raised(bring, lab, volume, "demo", tmp_path / "here")
    assert find_codes(large) == ["SL-report-too-large"] and f"{volume}/demo/report" in str(large)
    assert not (tmp_path / "here").exists()


def test_the_verb_prints_the_table_and_passes_its_options_on(lab, volume, tmp_path, monkeypatch, stratlab):
    monkeypatch.setattr(connection, "connect", lambda **_: lab[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://here:5000")  # which pods may not reach
    lab[1].env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    passed = []

    def spy(asked):
        passed.append(build_options(asked))
        return passed[-1]

    monkeypatch.setattr(comparison_pod, "build_options", spy)

    call = partial(stratlab, "compare", "demo", "--on-cluster", "--mount", volume)
    code, out, _ = call()
    assert code == 0 and "report: demo-report/report.html" in out
    code, out, _ = call("--json", "-", "--baseline", "fsdp", "--memory-limit-gib", "4")
    report = json.loads(out)
    assert code == 0
    assert report["attribution"]["baseline"] == "fsdp" and report["goals"]["memory_limit_gib"] == 4.0
    code, _, err = call("--baseline", "zero3", "--tracking-uri", "http://mlflow:5000")
    assert code == 2 and find_codes(err) == ["SL-baseline-unknown"]
    assert passed[0] == [] and passed[1] == ["--baseline=fsdp", "--memory-limit-gib=4.0"]
    assert "--tracking-uri=http://mlflow:5000" in passed[2] and call("--experiment", "demo")[0] == 2
    assert build_options({"baseline": "--json", "other": None}) == ["--baseline=--json"]


def build_comparison(root, uri):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.create_experiment(root.name)
    for run in ("ddp", "fsdp"):
        folder = build(root, [run]) / run
        run_id = client.create_run(experiment, run_name=run).info.run_id
        server = {"tracking_uri": uri, "experiment_id": experiment, "run_id": run_id}
        write_json(folder / "mlflow.json", server)
        for name in ("loss", "samples_per_s", "nobody_asked"):
            client.log_metric(run_id, name, 1.5)
        for name in ("config.json", "summary.json", "attempts.jsonl", "metrics.jsonl"):
            client.log_artifact(run_id, str(folder / name), "run")


def test_the_report_lies_beside_its_runs_once(mlflow_server, tmp_path):
    from mlflow.tracking import MlflowClient

    root = tmp_path / f"demo-{uuid.uuid4().hex[:8]}"
    build_comparison(root, mlflow_server)
    runs = load_runs(root)
    report = compare(runs)
    write_report(report, runs, root / "report")
    said = {log_for_user(report, runs, root / "report", None, "", None) for _ in range(2)}
    client = MlflowClient(mlflow_server)
    experiment = client.get_experiment_by_name(root.name)
    (run,) = [r for r in client.search_runs([experiment.experiment_id]) if r.info.run_name == "comparison"]
    page = f"#/experiments/{experiment.experiment_id}/runs?compareRunsMode=CHART&viewStateShareKey=stratlab"
    (both,) = said
    assert run.info.run_id in both.splitlines()[0]
    assert both.splitlines()[1].endswith(f"{mlflow_server}/{page}")
    assert run.info.status == "FINISHED" and (root.name, page) in find_places(mlflow_server)
    assert run.data.tags["verdict"] == "comparable" and "samples_per_s: ddp" in run.data.tags["best"]
    note = run.data.tags["mlflow.note.content"]
    assert note.startswith(describe(report)) and note == experiment.tags["mlflow.note.content"]
    paths = (
        entry.path for place in ("", "comparison") for entry in client.list_artifacts(run.info.run_id, place)
    )
    assert {*paths} == {"comparison", *(name if name == PAGE else f"comparison/{name}" for name in FILES)}
    stored = client.download_artifacts(run.info.run_id, "comparison/report.json", str(tmp_path))
    assert json.loads(Path(stored).read_text()) == json.loads((root / "report/report.json").read_text())
    view = json.loads(experiment.tags["mlflow.sharedViewState.stratlab"])
    charts = [(chart["type"], chart["metricKey"]) for chart in view["compareRunCharts"]]
    assert charts == [("BAR", "samples_per_s"), ("LINE", "loss")], "what the runs have, in this order"
    row = next(each for each in report["runs"] if each["run"] == "fsdp")
    told = client.get_run(row["mlflow_run_id"]).data.tags["mlflow.note.content"]
    assert told.count(describe_compared(report, "fsdp")) == 1, "each time anew"
    # and is no run of the next comparison
    names = [r.name for r in load_experiment(root.name, mlflow_server, tmp_path / "into")]
    assert names == ["ddp", "fsdp"]


def test_a_server_that_is_away_several_or_none_costs_a_sentence(tmp_path):
    runs = load_runs(build(tmp_path / "demo", ["ddp", "fsdp"]))
    report = compare(runs)
    for uri in (f"http://127.0.0.1:{free_port()}", "http://mlflow.invalid:5000"):
        said = log_for_user(report, runs, tmp_path, None, uri, None)
        assert said.startswith(NOT_THERE) and find_codes(said) == ["SL-report-server-away"] and uri in said
        assert ("--mlflow" in said) is ("127" in uri), "a rehearsal's server ends with it"
    assert find_codes(raised(log_for_user, report, runs, tmp_path, None, "", tmp_path)) == [
        "SL-mlflow-no-store"
    ]
    write_json(tmp_path / "demo" / "ddp" / "mlflow.json", {"tracking_uri": "https://mlflow:5000"})
    said = log_for_user(report, load_runs(tmp_path / "demo"), tmp_path, None, "", None)
    assert find_codes(said) == ["SL-report-several-servers"]
    for run in runs:
        (run.folder / "mlflow.json").unlink()
    assert log_for_user(report, load_runs(tmp_path / "demo"), tmp_path, None, "", None) == ""


def test_a_server_elsewhere_and_an_experiment_that_is_not_there_are_named(mlflow_server):
    with run_redirect(mlflow_server) as uri, pytest.raises(NotLogged) as moved:
        log_comparison({}, Path(), uri, "nobody")
    assert find_codes(moved.value) == ["SL-report-redirect"] and mlflow_server in str(moved.value)
    assert find_codes(raised(log_comparison, {}, Path(), mlflow_server, "nobody")) == [
        "SL-report-no-experiment"
    ]


@pytest.fixture
def experiment(mlflow_server):
    from mlflow.tracking import MlflowClient

    name = f"demo-{uuid.uuid4().hex[:8]}"
    MlflowClient(mlflow_server).create_experiment(name)
    return name


def send(uri, experiment, folder, run_name):
    """Logs a run directory as the analysis does: the run's files under run/, the report under analysis/."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment_id = client.get_experiment_by_name(experiment).experiment_id
    run_id = str(client.create_run(experiment_id, run_name=run_name).info.run_id)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = path.relative_to(folder).parent.as_posix()
        client.log_artifact(
            run_id, str(path), place if place == "analysis" else f"run/{place}".removesuffix("/.")
        )
    return run_id


def test_an_experiment_reads_like_the_folder(mlflow_server, experiment, tmp_path, capfd):
    root = build(tmp_path / "demo", ["ddp", "fsdp"])
    ids = {run: send(mlflow_server, experiment, root / run, run) for run in ("ddp", "fsdp")}
    capfd.readouterr()
    runs = load_experiment(experiment, mlflow_server, tmp_path / "into")
    assert capfd.readouterr().err == "", "a progress bar would cross the table"
    assert [(run.name, run.status, run.missing, run.problems) for run in runs] == [
        ("ddp", "finished", [], []),
        ("fsdp", "finished", [], []),
    ]
    assert {run.name: run.mlflow_run_id for run in runs} == ids
    assert {run.tuning for run in runs} == {NOT_IN_MLFLOW}
    fetched, local = compare([replace(run, tuning="") for run in runs]), compare(load_runs(root))
    for row in (*fetched["runs"], *local["runs"]):
        del row["run_dir"], row["mlflow_run_id"]
    assert fetched == local
    # traces and logs stay where they are
    names = {path.name for path in (tmp_path / "into").rglob("*") if path.is_file()}
    assert "report.json" in names and not names & {"rank0_trace.json", "rank0.log"}
    # a second time into the same folder: files of the first do not stay
    (tmp_path / "into" / "ddp" / "stale.json").write_text("{}")
    assert len(load_experiment(experiment, mlflow_server, tmp_path / "into")) == 2
    assert not (tmp_path / "into" / "ddp" / "stale.json").exists()


def test_what_cannot_be_fetched_is_named(mlflow_server, experiment, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_ALLOW_HTTP_REDIRECTS", raising=False)
    away = f"http://127.0.0.1:{free_port()}"
    for name, uri, code in (
        ("demoo", mlflow_server, "SL-experiment-absent"),
        (experiment, mlflow_server, "SL-experiment-empty"),
        ("demo", away, "SL-experiment-server-away"),
    ):
        refused = raised(load_experiment, name, uri, tmp_path / "into")
        assert find_codes(refused) == [code] and uri in str(refused)
        assert code != "SL-experiment-absent" or experiment in str(refused), "those that there are"
    with run_redirect(mlflow_server) as uri, pytest.raises(UserError) as moved:
        load_experiment(experiment, uri, tmp_path / "into")
    assert find_codes(moved.value) == ["SL-experiment-server-failed"] and mlflow_server in str(moved.value)
    assert not (tmp_path / "into").exists()


def test_a_folder_of_the_users_own_is_not_replaced(mlflow_server, experiment, tmp_path, monkeypatch):
    """`compare --experiment NAME --output .` in a folder whose runs/ is the results of somebody."""
    send(mlflow_server, experiment, build_run_dir(tmp_path / "demo", "ddp", "ddp"), "ddp")
    mine = build_run_dir(tmp_path / "work" / "runs", "ddp", "ddp") / "checkpoints" / "step_00000100"
    mine.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    assert find_codes(raised(load_experiment, experiment, mlflow_server, Path("runs"))) == [
        "SL-experiment-folder-taken"
    ]
    assert mine.is_dir() and sorted(path.name for path in Path("runs").iterdir()) == ["ddp"]


class HostileServer:
    """Stands in for MLflow's client on a server that names what it likes."""

    def __init__(self, path):
        self.path = path

    def list_artifacts(self, run_id, folder):
        return [SimpleNamespace(path=self.path, is_dir=False)] if folder == "run" else []

    def download_artifacts(self, run_id, path, into):
        (Path(into) / "config.json").write_text("{}")
        return str(Path(into) / "config.json")


@pytest.mark.parametrize("name", ["{0}/config.json", "run/{0}/config.json", "run/../../outside/config.json"])
def test_no_artifact_is_written_outside_of_its_run(tmp_path, name):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "into").mkdir()
    client = HostileServer(name.format(outside))
    run = SimpleNamespace(info=SimpleNamespace(run_id="r", experiment_id="1"))
    try:
        _fetch(client, run, tmp_path / "into" / "ddp", "http://mlflow:5000")
    except UserError as refusal:
        assert find_codes(refusal) == ["SL-artifact-path"]
    assert list(outside.iterdir()) == []
