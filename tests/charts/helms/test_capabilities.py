"""A cluster that does not serve the chosen API is told apart from no cluster, and refused with what helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.cluster.workloads import APIS
from tests.charts.rendering import CHARTS, HELMS, find_program, helm_template, pick, render, waiter_pod
from tests.codes import find_codes

# What every API server has, and Helm's own list for `helm template` has not.
CLUSTER = ["--api-versions", "apiregistration.k8s.io/v1"]
BASELINE = "run.podSecurity.level=baseline"  # mpijob-v1 and a master need it
SERVED = {
    "pytorchjob": ("kubeflow.org/v1/PyTorchJob", "trainer.git/manifests/overlays/standalone?ref=v1.9.4"),
    "mpijob-v1": ("kubeflow.org/v1/MPIJob", "trainer.git/manifests/overlays/standalone?ref=v1.9.4"),
    "mpijob-v2beta1": ("kubeflow.org/v2beta1/MPIJob", "mpi-operator.git/manifests/overlays/standalone"),
    "trainjob": ("trainer.kubeflow.org/v1alpha1/TrainJob", "trainer.git/manifests/overlays/manager"),
}
FIRST = find_program(HELMS[0])


def served(*apis: str) -> list[str]:
    return [*CLUSTER, *(part for api in apis for part in ("--api-versions", SERVED[api][0]))]


@pytest.mark.parametrize("api", SERVED)
def test_an_api_that_is_not_served(api: str) -> None:
    chosen = ["--set", f"run.workload.api={api},{BASELINE}"]
    done = helm_template(FIRST, CHARTS / "ddp", [*served(*(SERVED.keys() - {api})), *chosen])
    assert done.returncode == 1 and find_codes(done.stderr) == ["SL-chart-api-not-served"]
    assert SERVED[api][1] in done.stderr
    render(FIRST, CHARTS / "ddp", [*served(api), *chosen])


def test_each_helm_asks_the_cluster_where_there_is_one(helm: Path) -> None:
    assert helm_template(helm, CHARTS / "ddp", CLUSTER).returncode == 1
    render(helm, CHARTS / "ddp", served("pytorchjob"))
    render(helm, CHARTS / "ddp", ["--is-upgrade"])


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["mpijob-v1", "pytorchjob", "trainjob"], "pytorchjob"),
        (["mpijob-v2beta1", "trainjob"], "trainjob"),
        (["mpijob-v2beta1"], "mpijob-v2beta1"),
        (["mpijob-v1"], "mpijob-v1"),
        ([], "pytorchjob"),  # without a cluster
    ],
)
def test_auto_takes_what_the_cluster_serves(names: list[str], chosen: str) -> None:
    arguments = served(*names) if names else []
    documents = render(FIRST, CHARTS / "ddp", [*arguments, "--set", f"run.workload.api=auto,{BASELINE}"])
    workload = pick(documents, APIS[chosen].kind)
    assert f"{workload['apiVersion']}/{workload['kind']}" == SERVED[chosen][0]
    waiter = waiter_pod(documents)["containers"][0]["command"]
    assert waiter[waiter.index("--resource") + 1].partition("/")[0] == chosen


def test_auto_with_a_master() -> None:
    """Which only a PyTorchJob has: what is missing is said, and not that nothing else has one."""
    settings = ["--set", f"run.workload.api=auto,run.workload.topology=master-worker,{BASELINE}"]
    done = helm_template(FIRST, CHARTS / "ddp", [*served("trainjob"), *settings])
    assert find_codes(done.stderr) == ["SL-chart-api-not-served"]
    documents = render(FIRST, CHARTS / "ddp", [*served("trainjob", "pytorchjob"), *settings])
    assert "Master" in pick(documents, "PyTorchJob")["spec"]["pytorchReplicaSpecs"]
