"""TrainJob and MPIJob v2beta1 on their real operators: trained, disturbed, resumed, analysed, compared, removed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import Lab
from tests.cluster.path import Run, check_comparison, check_mlflow, check_success, check_uninstall, install
from tests.cluster.resuming import CHECKPOINTS, Fault, check_resumed, delete_pod, disturb, kill_rank

pytestmark = pytest.mark.cluster

COMPARISON = "operators"
# little enough for two runs beside the operators on a machine with two CPUs
SMALL: dict[str, Any] = CHECKPOINTS | {
    "run.resources.requests.cpu": "50m",
    "run.config.comparison": COMPARISON,
}
UNSEEN = {"run.analysis.enabled": "false", "run.config.comparison": "disturbed"}

TRAINJOB = Run(
    "ddp", "whole-trainjob", values=SMALL | {"run.workload.api": "trainjob"},
    resource="trainjobs.v1alpha1.trainer.kubeflow.org", success="Complete", role="node-0",
)  # fmt: skip
MPIJOB = Run(
    "ddp", "whole-mpijob", values=SMALL | {"run.workload.api": "mpijob-v2beta1"},
    resource="mpijobs.v2beta1.kubeflow.org",
)  # fmt: skip
RUNS = [TRAINJOB, MPIJOB]


def disturbed(whole: Run, cause: Callable[[Lab, str], None]) -> Fault:
    """The same run under another name, without an analysis."""
    api = whole.values["run.workload.api"]
    name = f"{cause.__name__.replace('_', '-')}-{api.partition('-')[0]}"
    return Fault(replace(whole, release=name, values=whole.values | UNSEEN), whole, cause)


FAULTS = [disturbed(whole, cause) for whole in RUNS for cause in (kill_rank, delete_pod)]


@pytest.mark.parametrize("each", RUNS, ids=lambda each: each.name)
def test_a_run_succeeds_by_helm_install_alone(lab: Lab, each: Run) -> None:
    install(lab, each)
    check_success(lab, each)
    for rank in (0, 1):
        assert each.name in lab.stratlab("logs", each.name, "--rank", rank).stderr


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.run.name)
def test_a_disturbed_run_ends_as_if_nothing_had_been(lab: Lab, fault: Fault) -> None:
    disturb(lab, fault)
    check_resumed(lab, fault)
    lab.uninstall(fault.run.name)


def test_both_are_in_mlflow_compared_and_removed(lab: Lab, tmp_path: Path) -> None:
    names = sorted(each.name for each in RUNS)
    check_mlflow(lab, RUNS)
    for name in names:
        lab.test(name)
    check_comparison(lab, COMPARISON, names, tmp_path / "report")
    rows = json.loads((tmp_path / "report" / "report.json").read_text())["runs"]
    assert rows[0]["test_loss"] == rows[1]["test_loss"], "the operator changes nothing of the training"
    for each in RUNS:
        check_uninstall(lab, each)


def test_auto_takes_what_the_cluster_serves(lab: Lab) -> None:
    values = SMALL | {"run.workload.api": "auto", "run.suspend": "true", "run.analysis.enabled": "false"}
    lab.install("auto", "ddp", values)
    assert lab.get("pytorchjobs.v1.kubeflow.org", "auto")
    lab.helm("upgrade", "auto", "ddp", values)
    lab.uninstall("auto")
