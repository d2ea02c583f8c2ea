"""What helm prints after `helm install`: commands that can be typed, and where the results are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.charts.rendering import CHARTS, HELMS, NAMESPACE, RELEASE, find_program, pick, render
from tests.documents.test_commands import find_problems

BASELINE = "run.podSecurity.level=baseline"


@pytest.fixture(scope="module")
def notes_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`helm template` leaves NOTES.txt out, so here they are in an object. Any helm, no cluster."""
    charts = tmp_path_factory.mktemp("charts")
    for name in ("run", "ddp"):
        shutil.copytree(CHARTS / name, charts / name, symlinks=True)
    notes = (charts / "ddp" / "templates" / "NOTES.txt").read_text().strip()
    expression = re.fullmatch(r"\{\{ (include .*) \}\}", notes)
    assert expression
    text = f"kind: Notes\ntext: {{{{ {expression[1]} | quote }}}}\n"
    (charts / "ddp" / "templates" / "run.yaml").write_text(text)
    return charts / "ddp"


def read_notes(chart: Path, settings: str, helm: Path | None = None) -> str:
    rendered = render(helm or find_program(HELMS[0]), chart, ["--set", settings])
    return str(pick(rendered, "Notes")["text"])


def test_notes_name_the_run_and_its_results(helm: Path, notes_chart: Path) -> None:
    text = read_notes(notes_chart, "run.config.comparison=vit,run.nodes=2,run.processesPerNode=4", helm)
    commands = re.findall(r"^ *(stratlab (?!predict).*?)(?: {5,}.*)?$", text, re.MULTILINE)
    assert [command.split()[1] for command in commands] == ["watch", "logs", "compare"]
    for command in commands:
        assert [*find_problems(command)] == [] and command.endswith(f" --namespace {NAMESPACE}")
    for part in (
        f"/results/vit/{RELEASE}/analysis/report.html",
        "port-forward service/mlflow 5000:5000",
        f"helm -n {NAMESPACE} test {RELEASE} ",
        f"uninstall {RELEASE} ",
        "cpu 8, memory 32Gi, nvidia.com/gpu 4",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("settings", "there", "absent"),
    [
        ("run.analysis.enabled=false,run.mlflow.trackingUri=", "helm", "report.html|port-forward|http:"),
        (
            "run.mlflow.trackingUri=https://mlflow.example.com/x",
            "https://mlflow.example.com/x",
            "port-forward",
        ),
        (
            "run.config.mode=check,run.nodes=2",
            f"/results/_environment/{RELEASE}.json",
            "report.html|compare|predict",
        ),
        ("run.accelerator=", "cpu 200m, memory 2Gi", "predict|nvidia"),
        ("run.resources.requests.cpu=500m,run.resources.limits.memory=3Gi", "cpu 500m, memory 3Gi", "32Gi"),
        ("run.rdma.enabled=true,run.podSecurity.level=privileged", "run.rdma.lockMemory=true", "baseline"),
        ("run.suspend=true", "run.suspend=false", "baseline"),
        (f"run.workload.api=mpijob-v1,{BASELINE}", f"logs pod/{RELEASE}-launcher", "worker-0"),
        ("run.workload.api=mpijob-v2beta1", f"logs job/{RELEASE}-launcher", "baseline"),
        ("run.workload.api=trainjob", f"logs job/{RELEASE}-node-0", "baseline"),
        (f"run.workload.topology=master-worker,{BASELINE}", f"logs pod/{RELEASE}-master-0", "worker-0"),
    ],
)
def test_what_depends_on_the_values(notes_chart: Path, settings: str, there: str, absent: str) -> None:
    text = read_notes(notes_chart, settings)
    assert there in text and not re.search(absent, text)


@pytest.mark.parametrize(
    ("settings", "there"),
    [
        ("prepare.dataset=org/pets,prepare.name=pets", "run.config.dataset_path=/results/_prepared/pets\n"),
        ("prepare.dataset=metamathqa,prepare.tokenize=qwen2.5-3b", "/results/_prepared/tokens-"),
        ("prepare.weights=vgg", "run.env[0].name=TORCH_HOME,run.env[0].value=/results/_prepared/golden\n"),
        ("prepare.model=org/net", 'from_pretrained("/results/_prepared/golden")'),
    ],
)
def test_helm_install_shows_them(settings: str, there: str) -> None:
    """Helm 4 only: `helm install --dry-run=client` of Helm 3 asks for a cluster."""
    command = [
        find_program("helm"),
        "install",
        RELEASE,
        CHARTS / "prepare",
        "--dry-run=client",
        "--set",
        settings,
    ]
    env = {**os.environ, "KUBECONFIG": os.devnull}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    text = done.stdout.split("NOTES:\n")[1]
    assert there in text and "components/hub-access" in text
    assert ("dataset_path" in text) == ("pets" in settings)
