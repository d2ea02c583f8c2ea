"""What comes of rendered charts, and what a rehearsal refuses before anything starts."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from stratlab import UserError
from stratlab.helm import find_helm, render_chart
from stratlab.rehearsal_plan import PlannedRun, RehearsalRequest, build_planned_run, build_rehearsal_plan
from tests.codes import find_codes
from tests.stratlab.raised import raised
from tests.stratlab.rehearse.conftest import JOB, write_chart

DDP = Path("charts/ddp")
URI = "http://127.0.0.1:1"


def plan(tmp_path: Path, *charts: Path, **options: object) -> list[PlannedRun]:
    given = {"results": tmp_path / "runs", "mlflow": tmp_path / "mlflow"} | options
    return build_rehearsal_plan(RehearsalRequest(charts=charts, **given), URI)  # type: ignore[arg-type]


def refused(tmp_path: Path, *charts: Path, **options: object) -> tuple[list[str], str]:
    with pytest.raises(UserError) as failure:
        plan(tmp_path, *charts, **options)
    return find_codes(failure.value), str(failure.value)


def test_nodes_processes_folder_and_tracking_uri_reach_the_pods(chart, tmp_path):
    (run,) = plan(tmp_path, chart, nodes=2, processes=3)
    assert run.run_dir == tmp_path / "runs" / "demo" / "tiny"
    assert [pod.name for pod in run.pods] == ["tiny-worker-0", "tiny-worker-1"]
    env = run.pods[1].commands[0].env
    assert (env["PET_NNODES"], env["PET_NPROC_PER_NODE"]) == ("2:2", "3")
    assert env["MLFLOW_TRACKING_URI"] == URI
    assert run.pods[0].claims == (tmp_path / "runs",)
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

    def environment(*settings: str) -> Mapping[str, str]:
        return plan(tmp_path, DDP, settings=settings)[0].pods[0].commands[-1].env

    there = str(tmp_path / "runs")
    settings = ["run.config.dataset_path=/results/_prepared/pets", "run.config.model_path=/resultsets/vit"]
    env = environment(*settings, "run.env[0].name=TORCH_HOME,run.env[0].value=/results/_prepared/torch")
    assert env["TRAINER_RESULTS"] == there
    assert env["TRAINER_DATASET_PATH"] == f"{there}/_prepared/pets"
    assert env["TORCH_HOME"] == f"{there}/_prepared/torch"
    assert env["TRAINER_MODEL_PATH"] == "/resultsets/vit"
    env = environment(*settings, "run.results.mountPath=/resultsets")
    assert env["TRAINER_DATASET_PATH"] == "/results/_prepared/pets"
    assert env["TRAINER_MODEL_PATH"] == f"{there}/vit"
    env = environment(f"run.results.mountPath={tmp_path}", f"run.config.dataset_path={there}/a")
    assert env["TRAINER_DATASET_PATH"] == f"{there}/a", "what lies in the folder stays where it is"
