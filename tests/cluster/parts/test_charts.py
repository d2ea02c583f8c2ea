"""The charts on a real API server with the real training operator: what no rendering shows. No image has to work.

Namespaces of its own, gone afterwards.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.charts.rendering import CHARTS, find_program
from tests.charts.unwrapping import WORKLOADS

pytestmark = pytest.mark.cluster

SERVED_BY_THE_TRAINING_OPERATOR = [
    workload for workload in WORKLOADS if workload[0] in ("pytorchjob", "mpijob-v1")
]
BASELINE = "run.podSecurity.level=baseline"
"""mpijob-v1 and a master need it; suspended runs have no pods that the namespace would refuse."""
WAIT_S = 60.0


def kubectl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(find_program("kubectl")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    assert os.environ.get("KUBECONFIG"), "KUBECONFIG is not set"
    name = f"stratlab-charts-{uuid.uuid4().hex[:6]}"
    assert kubectl("create", "namespace", name).returncode == 0
    kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_helm(helm: Path, namespace: str) -> Run:
    def run(verb: str, release: str, *settings: str) -> subprocess.CompletedProcess[str]:
        command = [str(helm), verb, release, "--namespace", namespace]
        if verb in ("install", "upgrade"):
            command += [str(CHARTS / "ddp"), "--set", ",".join(("run.accelerator=", *settings))]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    return run


def read(namespace: str, kind: str, name: str) -> dict[str, Any]:
    done = kubectl("-n", namespace, "get", kind, name, "-o", "json")
    return json.loads(done.stdout) if done.returncode == 0 else {}


def wait_for(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def conditions(namespace: str, name: str) -> dict[str, str]:
    status = read(namespace, "pytorchjob", name).get("status", {})
    return {each["type"]: each["status"] for each in status.get("conditions", [])}


def worker_image(namespace: str, name: str) -> str:
    worker = read(namespace, "pytorchjob", name)["spec"]["pytorchReplicaSpecs"]["Worker"]
    return worker["template"]["spec"]["containers"][0]["image"]


@pytest.mark.parametrize(("api", "topology"), SERVED_BY_THE_TRAINING_OPERATOR)
def test_the_api_server_takes_every_object(
    run_helm: Run, namespace: str, helm: Path, api: str, topology: str
) -> None:
    release = f"{api}-{topology}-{helm.name}"
    settings = (f"run.workload.api={api}", f"run.workload.topology={topology}", "run.nodes=2", BASELINE)
    done = run_helm("install", release, *settings, "run.suspend=true")
    assert done.returncode == 0, done.stderr
    kind = "pytorchjob" if api == "pytorchjob" else "mpijob"
    assert read(namespace, kind, release)["metadata"]["annotations"]["stratlab/processes"] == "4"
    assert run_helm("uninstall", release).returncode == 0
    assert read(namespace, kind, release) == {}


@pytest.mark.parametrize("api", ["trainjob", "mpijob-v2beta1"])
def test_an_api_that_the_cluster_does_not_serve(run_helm: Run, api: str) -> None:
    done = run_helm("install", f"missing-{api}", f"run.workload.api={api}")
    assert done.returncode and f"run.workload.api={api}: this cluster has no " in done.stderr


def test_an_upgrade_suspends_resumes_and_refuses_other_settings(
    run_helm: Run, namespace: str, helm: Path
) -> None:
    release = f"upgraded-{helm.name}"
    assert run_helm("install", release, "run.suspend=true").returncode == 0
    wait_for(lambda: conditions(namespace, release).get("Suspended") == "True")
    assert read(namespace, "pod", f"{release}-worker-0") == {}

    other_api = f"run.workload.api=mpijob-v1,{BASELINE}"
    for setting in ("run.config.lr=0.5", "run.nodes=2", other_api):
        refused = run_helm("upgrade", release, "run.suspend=true", setting)
        assert refused.returncode and "the settings of a run cannot change" in refused.stderr, setting

    image = worker_image(namespace, release)
    done = run_helm("upgrade", release, "run.analysis.image.tag=other", "run.image.tag=other")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: read(namespace, "pod", f"{release}-worker-0"))
    assert worker_image(namespace, release) == image
    jobs = json.loads(kubectl("-n", namespace, "get", "jobs", "-o", "json").stdout)["items"]
    names = [job["metadata"]["name"] for job in jobs if job["metadata"]["name"].startswith(release)]
    # those for the other image, without an error about a field that cannot change
    assert [name.split("-")[-2] for name in sorted(names)] == ["analysis", "waiter"]

    started = '{"spec":{"suspend":false}}'
    assert kubectl("-n", namespace, "patch", "job", min(names), "--type=merge", "-p", started).returncode == 0
    done = run_helm("upgrade", release, "run.analysis.image.tag=other", "run.scheduling.waitSeconds=60")
    assert done.returncode == 0, done.stderr
    assert (
        read(namespace, "job", min(names))["spec"]["suspend"] is False
    )  # an analysis that has begun goes on

    patch = '{"spec":{"runPolicy":{"suspend":true}}}'
    assert (
        kubectl("-n", namespace, "patch", "pytorchjob", release, "--type=merge", "-p", patch).returncode == 0
    )
    wait_for(lambda: conditions(namespace, release).get("Suspended") == "True")
    assert run_helm("upgrade", release, "run.analysis.image.tag=third").returncode == 0
    assert read(namespace, "pytorchjob", release)["spec"]["runPolicy"]["suspend"] is True  # not undone
    assert run_helm("uninstall", release).returncode == 0
