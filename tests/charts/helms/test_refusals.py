"""What a user may mistype is refused by each helm, whose words for the same schema differ."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.charts.bad_values import BAD, BAD_FOR_THE_CLUSTER, GOOD, batches, build_values
from tests.charts.rendering import CHARTS, helm_template, render
from tests.codes import find_codes

# setting, what helm must name; of helm 4 a place is /a/b, of helm 3 a.b
TYPOS = [
    ("numNodes=2", "numNodes"),
    ("run.nodez=2", "nodez"),
    ("run.config.tpp=2", "tpp"),
    ("run.config.lr=fast", "config/lr"),
    ("run.analysis.image.pullPolicy=No", "analysis/image/pullPolicy"),
    ("run.secrets[0].name=A", "secrets/0"),
    ("run.env[0].name=TRAINER_LR,run.env[0].value=1", "run.config.lr"),
]


@pytest.mark.parametrize(("setting", "named"), TYPOS)
def test_a_typo(helm: Path, setting: str, named: str) -> None:
    done = helm_template(helm, CHARTS / "ddp", ["--set", setting])
    assert (done.returncode, done.stdout) == (1, "")
    assert (named.replace("/", ".") if helm.name == "helm3" else named) in done.stderr
    assert find_codes(done.stderr) == (["SL-env-setting"] if "TRAINER" in setting else [])


def test_values_that_nobody_can_mean_and_those_at_an_edge(helm: Path) -> None:
    """Which one, tests/charts/test_bounds.py looks at in detail."""
    refused = next(batches([*BAD, *BAD_FOR_THE_CLUSTER]))
    assert helm_template(helm, CHARTS / "ddp", values={"run": build_values(*refused)}).returncode == 1
    render(helm, CHARTS / "ddp", values={"run": build_values(*next(batches(GOOD)))})


@pytest.mark.parametrize("chart", ["ddp", "prepare"])
def test_lint(helm: Path, chart: str) -> None:
    command = [helm, "lint", CHARTS / chart, "--set", "prepare.dataset=a/b"]
    done = subprocess.run(command[: 3 if chart == "ddp" else 5], capture_output=True, text=True)
    assert done.returncode == 0 and "[WARNING]" not in done.stdout, done.stdout
