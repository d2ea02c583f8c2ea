"""A cluster that does not serve the chosen API is told apart from no cluster, and refused with what helps."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from stratlab.cluster.workloads import APIS
from tests.charts.rendering import CHARTS, helm_template, pick, render, waiter_pod

# What every API server has, and Helm's own list for `helm template` has not.
CLUSTER = ["--api-versions", "apiregistration.k8s.io/v1"]
KINDS = ("PyTorchJob", "MPIJob", "TrainJob")
BASELINE = "run.podSecurity.level=baseline"  # mpijob-v1 and a master need it
SERVED = {
    "pytorchjob": ("kubeflow.org/v1/PyTorchJob", "trainer.git/manifests/overlays/standalone?ref=v1.9.4"),
    "mpijob-v1": ("kubeflow.org/v1/MPIJob", "trainer.git/manifests/overlays/standalone?ref=v1.9.4"),
    "mpijob-v2beta1": ("kubeflow.org/v2beta1/MPIJob", "mpi-operator.git/manifests/overlays/standalone"),
    "trainjob": ("trainer.kubeflow.org/v1alpha1/TrainJob", "trainer.git/manifests/overlays/manager"),
}


@pytest.mark.parametrize("api", SERVED)
def test_an_api_that_is_not_served(helm: Path, api: str) -> None:
    others = [part for name, (kind, _) in SERVED.items() if name != api for part in ("--api-versions", kind)]
    arguments = [*CLUSTER, *others, "--set", f"run.workload.api={api},{BASELINE}"]
    done = helm_template(helm, CHARTS / "ddp", arguments)
    assert done.returncode and f"run.workload.api={api}: this cluster has no " in done.stderr
    assert "kubectl apply --server-side -k" in done.stderr and SERVED[api][1] in done.stderr


@pytest.mark.parametrize("api", SERVED)
def test_an_api_that_is_served(helm: Path, api: str) -> None:
    arguments = [*CLUSTER, "--api-versions", SERVED[api][0], "--set", f"run.workload.api={api},{BASELINE}"]
    render(helm, CHARTS / "ddp", arguments)


@pytest.mark.parametrize("api", SERVED)
def test_without_a_cluster_nothing_is_asked(helm: Path, api: str) -> None:
    render(helm, CHARTS / "ddp", ["--set", f"run.workload.api={api},{BASELINE}"])
    render(helm, CHARTS / "ddp", ["--is-upgrade", "--set", f"run.workload.api={api},{BASELINE}"])


@pytest.mark.parametrize(
    ("served", "chosen"),
    [
        (["mpijob-v1", "pytorchjob", "trainjob"], "PyTorchJob"),
        (["mpijob-v2beta1", "trainjob"], "TrainJob"),
        (["mpijob-v2beta1"], "MPIJob"),
        (["mpijob-v1"], "MPIJob"),
        ([], "PyTorchJob"),  # without a cluster
    ],
)
def test_auto_takes_what_the_cluster_serves(helm: Path, served: list[str], chosen: str) -> None:
    arguments = [part for api in served for part in ("--api-versions", SERVED[api][0])]
    arguments += [*(CLUSTER if served else []), "--set", f"run.workload.api=auto,{BASELINE}"]
    documents = render(helm, CHARTS / "ddp", arguments)
    (workload,) = [each for each in documents if each["kind"] in KINDS]
    assert workload["kind"] == chosen
    if chosen == "MPIJob":
        assert f"{workload['apiVersion']}/MPIJob" == SERVED[served[0]][0]
    waiter = waiter_pod(documents)["containers"][0]["command"]
    api = waiter[waiter.index("--resource") + 1].partition("/")[0]
    assert APIS[api].kind == chosen


def test_auto_where_none_is_served(helm: Path) -> None:
    done = helm_template(helm, CHARTS / "ddp", [*CLUSTER, "--set", f"run.workload.api=auto,{BASELINE}"])
    assert done.returncode and "this cluster has no kubeflow.org/v1 PyTorchJob" in done.stderr


def test_auto_with_a_master(helm: Path) -> None:
    """Which only a PyTorchJob has: what is missing is said, and not that nothing else has one."""
    settings = ["--set", f"run.workload.api=auto,run.workload.topology=master-worker,{BASELINE}"]
    other = [*CLUSTER, "--api-versions", SERVED["trainjob"][0]]
    done = helm_template(helm, CHARTS / "ddp", [*other, *settings])
    assert done.returncode and "this cluster has no kubeflow.org/v1 PyTorchJob" in done.stderr
    documents = render(helm, CHARTS / "ddp", [*other, "--api-versions", SERVED["pytorchjob"][0], *settings])
    assert "Master" in pick(documents, "PyTorchJob")["spec"]["pytorchReplicaSpecs"]


def test_lint(helm: Path, chart: str) -> None:
    done = subprocess.run([helm, "lint", CHARTS / chart], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert "0 chart(s) failed" in done.stdout and "[WARNING]" not in done.stdout


def test_rendering_takes_no_time(helm: Path) -> None:
    """Measured 0.1 s of CPU; generous, because other work may be going on."""
    began = time.monotonic()
    render(helm, CHARTS / "ddp", ["--set", "run.nodes=1000"])
    assert time.monotonic() - began < 5
