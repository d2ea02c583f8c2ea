"""What helm prints after `helm install`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.charts.rendering import CHARTS, NAMESPACE, RELEASE, find_program, pick, render

BASELINE = "run.podSecurity.level=baseline"


@pytest.fixture(scope="module")
def notes_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`helm template` leaves NOTES.txt out, so here they are in an object. Any helm, no cluster."""
    charts = tmp_path_factory.mktemp("charts")
    shutil.copytree(CHARTS, charts, symlinks=True, dirs_exist_ok=True)
    notes = (charts / "ddp" / "templates" / "NOTES.txt").read_text().strip()
    expression = re.fullmatch(r"\{\{ (include .*) \}\}", notes)
    assert expression
    text = f"kind: Notes\ntext: {{{{ {expression[1]} | quote }}}}\n"
    (charts / "ddp" / "templates" / "run.yaml").write_text(text)
    return charts / "ddp"


def test_notes_name_the_run_and_its_results(helm: Path, notes_chart: Path) -> None:
    settings = "run.config.comparison=vit,run.nodes=2,run.mlflow.trackingUri=http://mlflow:5000"
    text = pick(render(helm, notes_chart, ["--set", settings]), "Notes")["text"]
    assert f"Run {RELEASE}: ddp on 2 x 2 processes (PyTorchJob)." in text
    assert f"stratlab watch {RELEASE} --namespace {NAMESPACE}" in text
    assert f"stratlab logs {RELEASE} --namespace {NAMESPACE}" in text
    assert f"kubectl -n {NAMESPACE} get pytorchjob/{RELEASE} --watch" in text
    assert f"kubectl -n {NAMESPACE} logs pod/{RELEASE}-worker-0 --follow" in text
    assert (
        f"/results/vit/{RELEASE}/analysis/report.html on the claim stratlab-results, and an artifact" in text
    )
    assert f"Metrics: http://mlflow:5000, experiment vit, run {RELEASE}" in text
    assert f"kubectl -n {NAMESPACE} port-forward service/mlflow 5000:5000" in text
    assert f"helm -n {NAMESPACE} test {RELEASE} " in text and f"logs {RELEASE}-test" in text
    assert "stratlab compare vit --on-cluster --namespace lab " in text
    assert f"uninstall {RELEASE}     /results/vit/{RELEASE} stays" in text
    assert "Suspended" not in text and "Pod Security" not in text


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            "run.processesPerNode=4",
            "requests cpu 8, memory 32Gi, nvidia.com/gpu 4; run.resources.requests sets",
        ),
        ("run.accelerator=", "requests cpu 200m, memory 2Gi; run.resources"),
        (
            "run.resources.requests.cpu=500m,run.resources.limits.memory=3Gi",
            "cpu 500m, memory 3Gi, nvidia.com/gpu 2",
        ),
    ],
)
def test_what_a_pod_reserves(helm: Path, notes_chart: Path, settings: str, says: str) -> None:
    assert says in pick(render(helm, notes_chart, ["--set", settings]), "Notes")["text"]


def test_notes_without_analysis_and_server(helm: Path, notes_chart: Path) -> None:
    settings = "run.analysis.enabled=false,run.mlflow.trackingUri="
    text = pick(render(helm, notes_chart, ["--set", settings]), "Notes")["text"]
    assert "report.html" not in text and "Metrics:" not in text and "port-forward" not in text


def test_a_server_outside_of_the_cluster_is_not_forwarded(helm: Path, notes_chart: Path) -> None:
    settings = "run.mlflow.trackingUri=https://mlflow.example.com/x"
    text = pick(render(helm, notes_chart, ["--set", settings]), "Notes")["text"]
    assert "Metrics: https://mlflow.example.com/x," in text and "port-forward" not in text


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            f"run.workload.api=mpijob-v1,{BASELINE}",
            "run.workload.api=mpijob-v1 (its operator adds an init container without a security context) needs a "
            "namespace with Pod Security `baseline`",
        ),
        (
            f"run.workload.topology=master-worker,{BASELINE}",
            "run.workload.topology=master-worker (its operator adds an init container without a security context) "
            "needs a namespace with Pod Security `baseline`",
        ),
        (
            "run.rdma.enabled=true,run.podSecurity.level=privileged",
            "run.rdma.lockMemory=true (the capability IPC_LOCK) needs a namespace with Pod Security `privileged`",
        ),
        ("run.suspend=true", f"helm upgrade {RELEASE} CHART --reuse-values --set run.suspend=false"),
        (f"run.workload.api=mpijob-v1,{BASELINE}", f"logs pod/{RELEASE}-launcher"),
        ("run.workload.api=mpijob-v2beta1", f"logs job/{RELEASE}-launcher"),
        ("run.workload.api=trainjob", f"logs job/{RELEASE}-node-0"),
        (f"run.workload.topology=master-worker,{BASELINE}", f"logs pod/{RELEASE}-master-0"),
    ],
)
def test_what_must_be_known_first(helm: Path, notes_chart: Path, settings: str, says: str) -> None:
    assert says in pick(render(helm, notes_chart, ["--set", settings]), "Notes")["text"]


def test_helm_install_shows_them() -> None:
    """Helm 4 only: `helm install --dry-run=client` of Helm 3 asks for a cluster."""
    command = [
        str(find_program("helm")),
        "install",
        RELEASE,
        str(CHARTS / "ddp"),
        "--dry-run=client",
        "-n",
        NAMESPACE,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "KUBECONFIG": os.devnull}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("NOTES:\n")[1].startswith(f"Run {RELEASE}: ddp on 1 x 2 processes (PyTorchJob).")


def test_notes_of_a_check_promise_no_run(helm: Path, notes_chart: Path) -> None:
    text = pick(render(helm, notes_chart, ["--set", "run.config.mode=check,run.nodes=2"]), "Notes")["text"]
    assert (
        f"logs pod/{RELEASE}-worker-0     has the table, also as /results/_environment/{RELEASE}.json" in text
    )
    assert f"stratlab watch {RELEASE} --namespace {NAMESPACE}" in text
    for promised in (
        "report.html",
        "stratlab compare",
        "helm -n lab test",
        "Metrics:",
        "checkpoint",
        "stratlab predict",
    ):
        assert promised not in text, promised
