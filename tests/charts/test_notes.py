"""What helm prints after `helm install`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.charts.rendering import CHARTS, NAMESPACE, RELEASE, find_program, pick, render


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
    assert f"Run {RELEASE}: ddp on 2 x 2 processes." in text
    assert f"kubectl -n {NAMESPACE} get pytorchjob {RELEASE} --watch" in text
    assert f"kubectl -n {NAMESPACE} logs {RELEASE}-worker-0 --follow" in text
    assert f"/results/vit/{RELEASE} on the claim stratlab-results" in text
    assert f"/results/vit/{RELEASE}/analysis/report.html" in text
    assert "Metrics: http://mlflow:5000" in text


def test_notes_without_analysis_and_server(helm: Path, notes_chart: Path) -> None:
    text = pick(render(helm, notes_chart, ["--set", "run.analysis.enabled=false"]), "Notes")["text"]
    assert "Analysis:" not in text and "Metrics:" not in text


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
    assert done.stdout.split("NOTES:\n")[1].startswith(f"Run {RELEASE}: ddp on 1 x 2 processes.")
