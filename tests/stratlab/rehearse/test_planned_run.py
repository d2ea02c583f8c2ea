from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratlab.cli import app
from stratlab.rehearse.planned_run import DEFAULT_COMPARISON, Request, build_plan
from stratlab.user_error import UserError
from tests.stratlab.rehearse.conftest import JOB, write_chart

CHARTS = Path("charts").absolute()
URI = "http://127.0.0.1:1"


def request(tmp_path: Path, *charts: Path, **options: object) -> Request:
    return Request(charts=charts, results=tmp_path / "runs", mlflow=tmp_path / "mlflow", **options)  # type: ignore[arg-type]


def test_nodes_processes_folder_and_tracking_uri_reach_the_pods(chart: Path, tmp_path: Path) -> None:
    run = build_plan(request(tmp_path, chart, nodes=2, processes=3), URI)[0]
    assert run.run_dir == tmp_path / "runs" / "demo" / "tiny"
    assert [pod.name for pod in run.pods] == ["tiny-worker-0", "tiny-worker-1"]
    env = run.pods[1].commands[0].env
    assert (env["PET_NNODES"], env["PET_NPROC_PER_NODE"]) == ("2:2", "3")
    assert env["MLFLOW_TRACKING_URI"] == URI
    assert run.pods[0].claims == (tmp_path / "runs",)
    assert run.restart_policy == "ExitCode"
    assert run.analysis and [command.container for command in run.analysis.commands] == ["wait", "analyze"]


def test_names_are_the_charts_or_the_one_given(chart: Path, tmp_path: Path) -> None:
    assert build_plan(request(tmp_path, chart, name="other"), URI)[0].run_dir.name == "other"
    with pytest.raises(ValueError, match="tiny: two charts of this name"):
        build_plan(request(tmp_path, chart, chart), URI)
    with pytest.raises(ValueError, match="--name x: only with one chart, 2 were given"):
        build_plan(request(tmp_path, chart, chart, name="x"), URI)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("kind: ServiceAccount", "kind: ConfigMap", r"renders ConfigMap tiny \(v1\)"),
        ("kind: PyTorchJob", "kind: MPIJob", r"renders MPIJob tiny \(kubeflow.org/v1\); .*api=pytorchjob"),
        ("kind: ServiceAccount", "kind: TrainingRuntime", "renders TrainingRuntime tiny .*api=pytorchjob"),
        (
            "  nprocPerNode:",
            "  runPolicy: {suspend: true}\n  nprocPerNode:",
            "run.suspend=true: a suspended run",
        ),
        ("apiVersion: batch/v1\nkind: Job", "apiVersion: v1\nkind: Role", None),
        (
            "kind: ServiceAccount\nmetadata: {name: {{ .Release.Name }}}",
            "kind: ServiceAccount\nmetadata: {name: a}\n---\n"
            "apiVersion: batch/v1\nkind: Job\nmetadata: {name: b}",
            "renders 1 PyTorchJob and 2 Job",
        ),
        (
            "{{ .Values.run.results.mountPath | quote }}}",
            "/results}",
            "does not follow run.results.mountPath",
        ),
        ("name: TRAINER_RUN", "name: TRAINER_NAME", "renders no TRAINER_RUN"),
    ],
)
def test_what_a_rehearsal_does_not_know_is_refused_by_name(
    tmp_path: Path, old: str, new: str, sentence: str | None
) -> None:
    assert old in JOB
    chart = write_chart(tmp_path / "tiny", job=JOB.replace(old, new, 1))
    if sentence is None:
        assert build_plan(request(tmp_path, chart), URI)[0].analysis is None
        return
    with pytest.raises(ValueError, match=sentence):
        build_plan(request(tmp_path, chart), URI)


def test_the_default_comparison_is_the_trainers() -> None:
    config = pytest.importorskip("trainer.settings.config")
    assert config.Config.model_fields["comparison"].default == DEFAULT_COMPARISON


def test_a_finished_run_is_not_overwritten(chart: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "demo" / "tiny"
    run_dir.mkdir(parents=True)
    build_plan(request(tmp_path, chart), URI)
    (run_dir / "config.json").write_text(json.dumps({"config": {}, "resolved": {}}))
    build_plan(request(tmp_path, chart), URI)  # an attempt that did not finish may be followed by another
    (run_dir / "summary.json").touch()
    with pytest.raises(ValueError, match=f"{run_dir}: this run is there already.*--replace.*--name"):
        build_plan(request(tmp_path, chart), URI)
    build_plan(request(tmp_path, chart, replace=True), URI)
    for file in run_dir.iterdir():
        file.unlink()
    (run_dir / "thesis.tex").touch()
    with pytest.raises(ValueError, match="something else than a run"):
        build_plan(request(tmp_path, chart, replace=True), URI)


def test_a_shipped_chart_needs_no_token_and_no_login(tmp_path: Path) -> None:
    """Both are for a cluster: a projected volume for the waiter, and a Secret for MLflow."""
    settings = ["run.mlflow.existingSecret=login"]
    run = build_plan(request(tmp_path, Path("charts/ddp"), settings=settings), URI)[0]
    assert run.analysis and run.analysis.claims == (tmp_path / "runs",)
    assert run.pods[0].commands[0].env["MLFLOW_TRACKING_URI"] == URI


def test_a_secret_of_ones_own_is_refused(tmp_path: Path) -> None:
    settings = ["run.secrets[0].name=HF_TOKEN,run.secrets[0].secret=hub,run.secrets[0].key=token"]
    with pytest.raises(ValueError, match=r"HF_TOKEN comes from secretKeyRef hub.*--set run.secrets=null"):
        build_plan(request(tmp_path, Path("charts/ddp"), settings=settings), URI)
    build_plan(request(tmp_path, Path("charts/ddp"), settings=[*settings, "run.secrets=null"]), URI)


def test_results_beside_the_folder_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount path may hold no `..`, which a relative folder does."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    asked: list[Request] = []
    monkeypatch.setattr(
        "stratlab.rehearse.rehearsal.rehearse", lambda request, _: asked.append(request) or []
    )
    done = CliRunner().invoke(app, ["rehearse", str(CHARTS / "ddp"), "--results", "../there/runs"])
    assert done.exit_code == 0, done.output
    assert (asked[0].results, asked[0].mlflow) == (tmp_path / "there/runs", tmp_path / "there/mlflow")


def test_results_that_a_chart_refuses_are_named_as_they_were_given() -> None:
    request = Request(charts=(Path("charts/ddp"),), results=Path("/etc/runs"), mlflow=Path("/tmp/m"))
    with pytest.raises(UserError, match="--results /etc/runs: a chart takes it for no volume"):
        build_plan(request, URI)


def test_an_empty_name_and_a_folder_of_values_are_refused(chart: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--name '': expected the name of the run"):
        build_plan(request(tmp_path, chart, name=""), URI)
    with pytest.raises(UserError, match="--values .*: is a folder"):
        build_plan(request(tmp_path, chart, values=(tmp_path,)), URI)


def test_what_lies_on_the_volume_is_looked_for_in_the_folder(tmp_path: Path) -> None:
    """Of settings and of run.env; /resultsets is another folder, and a cluster may have its volume elsewhere."""
    settings = ["run.config.dataset_path=/results/_prepared/pets", "run.config.model_path=/resultsets/vit"]
    settings += ["run.env[0].name=TORCH_HOME,run.env[0].value=/results/_prepared/torch"]

    def environment(*more: str) -> Mapping[str, str]:
        asked = request(tmp_path, Path("charts/ddp"), settings=[*settings, *more])
        return build_plan(asked, URI)[0].pods[0].commands[-1].env

    there = str(tmp_path / "runs")
    env = environment()
    assert env["TRAINER_RESULTS"] == there
    assert env["TRAINER_DATASET_PATH"] == f"{there}/_prepared/pets"
    assert env["TORCH_HOME"] == f"{there}/_prepared/torch"
    assert env["TRAINER_MODEL_PATH"] == "/resultsets/vit"
    env = environment("run.results.mountPath=/resultsets")
    assert env["TRAINER_DATASET_PATH"] == "/results/_prepared/pets"
    assert env["TRAINER_MODEL_PATH"] == f"{there}/vit"


def test_a_path_in_the_folder_stays_where_it_is(tmp_path: Path) -> None:
    """Also where the folder lies below the mount path of the cluster."""
    place = f"run.results.mountPath={tmp_path}"
    asked = request(
        tmp_path, Path("charts/ddp"), settings=[place, f"run.config.dataset_path={tmp_path}/runs/a"]
    )
    env = build_plan(asked, URI)[0].pods[0].commands[-1].env
    assert env["TRAINER_DATASET_PATH"] == f"{tmp_path}/runs/a"
