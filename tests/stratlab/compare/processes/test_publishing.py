"""A comparison in a pod, its report brought back. A process of this machine plays the pod, see fake_kubelet.

The comparison's report in MLflow, against a real server on loopback.
"""

import json
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratlab import UserError, cli
from stratlab.cluster import ClusterError, connection
from stratlab.cluster.connection import Connection
from stratlab.compare import publishing as comparison_pod
from stratlab.compare.comparison import compare
from stratlab.compare.publishing import (
    NOT_THERE,
    NotLogged,
    build_options,
    compare_on_cluster,
    find_mlflow,
    log_comparison,
    log_for_user,
    unpack_payload,
)
from stratlab.compare.report_files import FILES, write_report
from stratlab.compare.run_sources import load_experiment, load_runs
from stratlab.compare.summary_view import describe, describe_compared
from stratlab.drawing import drop_file_links
from stratlab.machine import free_port
from stratlab.run_directory.files import PAGE
from stratlab.tracking import find_places
from tests.codes import find_codes
from tests.redirecting_server import run_redirect
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.cluster.fake_kubelet import PODS, Kubelet, run_kubelet
from tests.stratlab.compare.building import build
from tests.stratlab.example_run import write_json

Lab = tuple[Connection, Kubelet]


@pytest.fixture
def lab() -> Iterator[Lab]:
    with run_kubelet(FakeApi()) as pair:
        yield pair


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    return build(tmp_path / "volume" / "demo", ["ddp", "fsdp"], device="cpu").parent


def bring(lab: Lab, volume: Path, comparison: str, output: Path) -> dict[str, Any]:
    place = {"claim": "stratlab-results", "mount": str(volume), "image": "lab"}
    return compare_on_cluster(
        lab[0], "lab", comparison, output=output, progress=lambda sentence: None, **place
    )


def test_the_report_is_on_the_volume_and_here_and_nothing_else_is_replaced(
    lab: Lab, volume: Path, tmp_path: Path
) -> None:
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
        with pytest.raises(ClusterError) as refused:
            unpack_payload(cut)
        assert find_codes(refused.value) == ["SL-report-cut"]
    (output / "comparison.csv").write_text("of an earlier report")
    (output / "thesis.tex").write_text("years")  # somebody works where the first report went: --output .
    bring(lab, volume, "demo", output)
    assert sorted(path.name for path in output.iterdir()) == sorted([*FILES, "thesis.tex"])
    assert (output / "comparison.csv").read_text() != "of an earlier report"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "volume"], "no temporary folder stays"


def test_what_is_refused(lab: Lab, volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years")
    for comparison, output, code in (
        ("demo", "mine", ["SL-output-taken"]),
        ("../demo", "here", ["SL-on-cluster-name"]),
    ):
        with pytest.raises(UserError) as refused:
            bring(lab, volume, comparison, tmp_path / output)
        assert find_codes(refused.value) == code and lab[1].created == [], "before a pod is started"
    with pytest.raises(UserError) as unknown:
        bring(lab, volume, "dmeo", tmp_path / "here")
    assert f"{volume}/dmeo" in str(unknown.value) and "stratlab-results" in str(unknown.value)
    monkeypatch.setattr(comparison_pod, "LARGEST_MIB", 0)
    with pytest.raises(ClusterError) as large:
        bring(lab, volume, "demo", tmp_path / "here")
    assert find_codes(large.value) == ["SL-report-too-large"] and f"{volume}/demo/report" in str(large.value)
    assert not (tmp_path / "here").exists()


def test_where_it_lies_in_mlflow_is_said_as_this_machine_reaches_it() -> None:
    place = "/#/experiments/1/runs/a/artifacts"
    said = f"best: fastest: ddp\nreport in MLflow: http://mlflow:5000{place}\n"
    inside, forward = find_mlflow(said, "lab")
    assert inside == f"report in MLflow: http://localhost:5000{place}"
    assert forward.endswith("kubectl -n lab port-forward service/mlflow 5000:5000")
    outside = "report in MLflow: https://mlflow.example/#/experiments/1"
    away = f"{NOT_THERE}: http://mlflow:5000 does not answer"
    assert find_mlflow(outside, "lab") == [outside] and find_mlflow(f"{away}\nbest: nobody", "lab") == [away]
    assert find_mlflow("best: nobody", "lab") == []


def test_the_verb_prints_the_table_and_passes_its_options_on(
    lab: Lab,
    volume: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(connection, "connect", lambda **_: lab[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://here:5000")  # which pods may not reach
    lab[1].env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    passed: list[list[str]] = []

    def spy(asked: dict[str, Any]) -> list[str]:
        passed.append(build_options(asked))
        return passed[-1]

    monkeypatch.setattr(comparison_pod, "build_options", spy)

    def call(*arguments: str) -> int:
        words = ["stratlab", "compare", "demo", "--on-cluster", "--mount", str(volume), *arguments]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0)

    assert call() == 0
    assert "report: demo-report/report.html" in capsys.readouterr().out
    assert call("--json", "-", "--baseline", "fsdp", "--memory-limit-gib", "4") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["attribution"]["baseline"] == "fsdp" and report["goals"]["memory_limit_gib"] == 4.0
    assert call("--baseline", "zero3", "--tracking-uri", "http://mlflow:5000") == 2
    assert find_codes(capsys.readouterr().err) == ["SL-baseline-unknown"]
    assert passed[0] == [] and passed[1] == ["--baseline=fsdp", "--memory-limit-gib=4.0"]
    assert "--tracking-uri=http://mlflow:5000" in passed[2]
    assert call("--experiment", "demo") == 2
    assert build_options({"baseline": "--json", "other": None}) == ["--baseline=--json"]


def build_comparison(root: Path, uri: str) -> None:
    """Two run directories and their runs in MLflow."""
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


def test_the_report_lies_beside_its_runs_once(mlflow_server: str, tmp_path: Path) -> None:
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
    assert run.info.run_id in both.splitlines()[0] and both.splitlines()[1].endswith(
        f"{mlflow_server}/{page}"
    )
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


def test_descriptions_of_users_stay_and_older_names_are_told(mlflow_server: str, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    root = tmp_path / f"demo-{uuid.uuid4().hex[:8]}"
    build_comparison(root, mlflow_server)
    client = MlflowClient(mlflow_server)
    experiment_id = client.get_experiment_by_name(root.name).experiment_id
    client.set_experiment_tag(experiment_id, "mlflow.note.content", "mine")
    ids = {run.info.run_name: run.info.run_id for run in client.search_runs([experiment_id])}
    client.set_tag(ids["ddp"], "mlflow.note.content", "mine too")
    client.log_metric(ids["fsdp"], "trace/idle_pct", 1.0)
    runs = load_runs(root)
    report = compare(runs)
    write_report(report, runs, root / "report")
    said = log_for_user(report, runs, root / "report", None, "", None)
    assert find_codes(said) == ["SL-mlflow-older-names"] and "fsdp" in said.splitlines()[-1]
    assert client.get_experiment(experiment_id).tags["mlflow.note.content"] == "mine"
    assert client.get_run(ids["ddp"]).data.tags["mlflow.note.content"] == "mine too"


def test_a_server_that_is_away_several_or_none_costs_a_sentence(tmp_path: Path) -> None:
    runs = load_runs(build(tmp_path / "demo", ["ddp", "fsdp"]))
    report = compare(runs)
    for uri in (f"http://127.0.0.1:{free_port()}", "http://mlflow.invalid:5000"):
        said = log_for_user(report, runs, tmp_path, None, uri, None)
        assert said.startswith(NOT_THERE) and find_codes(said) == ["SL-report-server-away"] and uri in said
        assert ("--mlflow" in said) is ("127" in uri), "a rehearsal's server ends with it"
    with pytest.raises(UserError) as refused:
        log_for_user(report, runs, tmp_path, None, "", tmp_path)
    assert find_codes(refused.value) == ["SL-mlflow-no-store"]
    write_json(tmp_path / "demo" / "ddp" / "mlflow.json", {"tracking_uri": "https://mlflow:5000"})
    said = log_for_user(report, load_runs(tmp_path / "demo"), tmp_path, None, "", None)
    assert find_codes(said) == ["SL-report-several-servers"]
    for run in runs:
        (run.folder / "mlflow.json").unlink()
    assert log_for_user(report, load_runs(tmp_path / "demo"), tmp_path, None, "", None) == ""


def test_a_server_elsewhere_and_an_experiment_that_is_not_there_are_named(mlflow_server: str) -> None:
    with run_redirect(mlflow_server) as uri, pytest.raises(NotLogged) as moved:
        log_comparison({}, Path(), uri, "nobody")
    assert find_codes(moved.value) == ["SL-report-redirect"] and mlflow_server in str(moved.value)
    with pytest.raises(NotLogged) as absent:
        log_comparison({}, Path(), mlflow_server, "nobody")
    assert find_codes(absent.value) == ["SL-report-no-experiment"]
