"""TrainJob and MPIJob v2beta1 on their real operators: trained, disturbed, resumed, analysed, compared, removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.lab import STRATLAB, Lab, run
from tests.cluster.operators.runs import COMPARISON, FAULTS, RUNS, SMALL
from tests.cluster.path import Run, check_comparison, check_mlflow, check_success, check_uninstall, install
from tests.cluster.resuming import Fault, check_resumed, wait_for_checkpoint
from tests.cluster.steps import Steps

pytestmark = pytest.mark.cluster

each_run = pytest.mark.parametrize("each", RUNS, ids=lambda each: each.name)


@each_run
def test_a_run_succeeds_by_helm_install_alone(lab: Lab, steps: Steps, each: Run) -> None:
    with steps.step(f"{each.name}: helm install, two pods, {each.success}, analysed") as notes:
        install(lab, each)
        notes.append(check_success(lab, each))
    with steps.step(f"{each.name}: stratlab logs of both ranks"):
        for rank in (0, 1):
            done = run([STRATLAB, "logs", each.name, "--rank", rank, "-n", lab.namespace])
            assert f"reading /results/{each.folder}" in done.stderr or f"pod {each.name}-" in done.stderr
            assert "done: test loss" in done.stdout or rank


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.run.name)
def test_a_disturbed_run_ends_as_if_nothing_had_been(lab: Lab, steps: Steps, fault: Fault) -> None:
    with steps.step(f"{fault.run.name}: behind a checkpoint, goes on, the undisturbed losses") as notes:
        install(lab, fault.run)
        step = wait_for_checkpoint(lab, fault.run)
        fault.cause(lab, fault.run.name)
        notes.append(f"behind the checkpoint of step {step}")
        notes.append(check_resumed(lab, fault))
        lab.uninstall(fault.run.name)


def test_mlflow_holds_metrics_and_reports(lab: Lab, steps: Steps) -> None:
    with steps.step("MLflow, asked through its Service, holds every metric and report"):
        check_mlflow(lab, RUNS)


@each_run
def test_helm_test(lab: Lab, steps: Steps, each: Run) -> None:
    with steps.step(f"{each.name}: helm test"):
        lab.test(each.name)


def test_the_runs_are_compared_over_the_volume(lab: Lab, steps: Steps, tmp_path: Path) -> None:
    with steps.step("stratlab compare --on-cluster: a TrainJob with an MPIJob") as notes:
        notes.append(
            check_comparison(lab, COMPARISON, sorted(each.name for each in RUNS), tmp_path / "report")
        )
        rows = json.loads((tmp_path / "report" / "report.json").read_text())["runs"]
        assert rows[0]["test_loss"] == rows[1]["test_loss"], "the operator changes nothing of the training"


def test_auto_takes_what_the_cluster_serves(lab: Lab, steps: Steps) -> None:
    with steps.step(
        "run.workload.api=auto, suspended: a PyTorchJob where all three are served; upgraded, it stays"
    ):
        values = SMALL | {"run.workload.api": "auto", "run.suspend": "true", "run.analysis.enabled": "false"}
        lab.install("auto", "ddp", values)
        assert lab.get("pytorchjobs.v1.kubeflow.org", "auto")
        lab.helm("upgrade", "auto", "ddp", values)
        lab.uninstall("auto")


@each_run
def test_uninstall_leaves_the_results_and_nothing_else(lab: Lab, steps: Steps, each: Run) -> None:
    with steps.step(f"{each.name}: helm uninstall leaves the results and nothing else"):
        check_uninstall(lab, each)
