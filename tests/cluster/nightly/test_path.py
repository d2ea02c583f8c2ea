"""What a user does, from `kubectl apply -k` to the report: four runs of two pods each, nothing started by hand."""

from __future__ import annotations

import pytest

from tests.cluster.lab import HELM, HELM3, ROOT, Lab, run
from tests.cluster.path import Run, check_comparison, check_mlflow, check_success, check_uninstall, install
from tests.cluster.steps import Steps

pytestmark = pytest.mark.cluster

RUNS = [
    Run("ddp"),
    Run("fsdp", helm=HELM3),
    Run("zero2"),
    Run("ddp", "ddp-mpi", "baseline", {"run.workload.api": "mpijob-v1"}, resource="mpijobs.v1.kubeflow.org"),
]
each_run = pytest.mark.parametrize("each", RUNS, ids=lambda each: each.name)


@each_run
def test_a_run_succeeds_by_helm_install_alone(labs: dict[str, Lab], steps: Steps, each: Run) -> None:
    with steps.step(f"{each.name}: helm install, two pods, Succeeded, analysed") as notes:
        install(labs[each.place], each)
        notes.append(check_success(labs[each.place], each))


@pytest.mark.parametrize("place", ["restricted", "baseline"])
def test_mlflow_holds_metrics_and_reports(labs: dict[str, Lab], steps: Steps, place: str) -> None:
    with steps.step(f"{place}: MLflow, asked through its Service, holds every metric and report"):
        check_mlflow(labs[place], [each for each in RUNS if each.place == place])


@each_run
def test_helm_test(labs: dict[str, Lab], steps: Steps, each: Run) -> None:
    with steps.step(f"{each.name}: helm test"):
        labs[each.place].test(each.name)


def test_the_runs_are_compared_over_the_volume(lab: Lab, steps: Steps, tmp_path) -> None:
    with steps.step("stratlab compare --on-cluster") as notes:
        notes.append(check_comparison(lab, "e2e", ["ddp", "fsdp", "zero2"], tmp_path / "report"))


def test_a_person_needs_only_the_user_role(lab: Lab, steps: Steps) -> None:
    with steps.step("the Role stratlab-user is enough to install, and for nothing else"):
        account = f"system:serviceaccount:{lab.namespace}:ada"
        lab.kubectl("create", "serviceaccount", "ada")
        lab.kubectl(
            "create", "rolebinding", "ada", "--role=stratlab-user", f"--serviceaccount={lab.namespace}:ada"
        )
        command = [
            HELM,
            "-n",
            lab.namespace,
            "--kube-as-user",
            account,
            "install",
            "by-ada",
            ROOT / "charts" / "single",
        ]
        run(
            [
                *command,
                "--set",
                "run.accelerator=",
                "--set",
                "run.suspend=true",
                "--set",
                "run.analysis.enabled=false",
            ]
        )
        run([HELM, "-n", lab.namespace, "--kube-as-user", account, "uninstall", "by-ada"])
        for refused in (
            ["create", "deployments"],
            ["create", "rolebindings"],
            ["delete", "persistentvolumeclaims"],
        ):
            assert lab.kubectl("auth", "can-i", *refused, f"--as={account}", check=False).strip() == "no"
        lab.kubectl("delete", "rolebinding/ada", "serviceaccount/ada")


@each_run
def test_uninstall_leaves_the_results_and_nothing_else(labs: dict[str, Lab], steps: Steps, each: Run) -> None:
    with steps.step(f"{each.name}: helm uninstall leaves the results and nothing else"):
        check_uninstall(labs[each.place], each)
