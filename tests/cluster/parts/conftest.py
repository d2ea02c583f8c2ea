"""A namespace of its own on the cluster for each file, and small PyTorchJobs in it."""

import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stratlab.cluster.connection import Connection, connect
from tests.cluster.lab import KUBECTL, RESTRICTED, USER, Lab, build_object, run, wait_until

RESULTS = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}}}


class Cluster(Lab):
    @property
    def connection(self) -> Connection:
        return connect(namespace=self.namespace)

    def submit(self, name: str, script: str, **options: Any) -> None:
        """A PyTorchJob. The operator's webhook may not answer for a while: it is stopped by tests of faults."""
        text = json.dumps(build_job(name, script, **options))
        command = [KUBECTL, "-n", self.namespace, "apply", "-f", "-"]
        wait_until(lambda: not run(command, check=False, text=text).returncode, f"{name} is taken")

    def suspend(self, name: str, suspended: bool) -> None:
        change = json.dumps({"spec": {"runPolicy": {"suspend": suspended}}})
        self.kubectl("patch", "pytorchjob", name, "--type=merge", "-p", change)

    def delete(self, name: str) -> None:
        self.kubectl("delete", "pytorchjob", name)

    def claim(self, name: str) -> None:
        self.apply(build_object("PersistentVolumeClaim", name, RESULTS))

    def names(self) -> list[str]:
        pods = self.get("pods")["items"]
        return [pod["metadata"]["name"] for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def build_job(
    name: str, script: str, restricted: bool = True, suspended: bool = False, image: str = ""
) -> dict[str, Any]:
    """As the charts make one of one worker, with a shell script in place of the trainer."""
    labels = {"app.kubernetes.io/instance": name, "app.kubernetes.io/component": "training"}
    notes = {"stratlab/run-directory": f"/results/demo/{name}", "stratlab/processes": "1"}
    container: dict[str, Any] = {
        "name": "pytorch", "image": image or find_image(), "command": ["sh", "-c", script],
    }  # fmt: skip
    pod: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 1}
    if restricted:
        container["securityContext"], pod["securityContext"] = RESTRICTED, USER
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {
        "nprocPerNode": "1",
        "runPolicy": {"cleanPodPolicy": "None", "suspend": suspended},
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 1, "maxRestarts": 0},
        "pytorchReplicaSpecs": {"Worker": {"replicas": 1, "restartPolicy": "ExitCode", "template": template}},
    }
    job = build_object("PyTorchJob", name, spec, labels=labels, annotations=notes)
    return job | {"apiVersion": "kubeflow.org/v1"}


def find_image() -> str:
    """An image with a shell that every cluster with the operator has: that of its init containers."""
    deployments = run([KUBECTL, "-n", "kubeflow", "get", "deployments", "-o", "json"]).stdout
    found = re.search(r'--pytorch-init-container-image=([^"]+)', deployments)
    return found[1] if found else "alpine:3.10"


@contextmanager
def use_namespace(level: str = "restricted") -> Iterator[Cluster]:
    """One that enforces this level of Pod Security; removed at the end."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG is not set")
    name = f"{os.environ.get('STRATLAB_TEST_NAMESPACE', 'stratlab-test')}-{uuid.uuid4().hex[:6]}"
    label = {"pod-security.kubernetes.io/enforce": level}
    run([KUBECTL, "apply", "-f", "-"], text=json.dumps(build_object("Namespace", name, {}, labels=label)))
    try:
        cluster = Cluster(name)
        # pods need it
        wait_until(lambda: cluster.kubectl("get", "serviceaccount", "default", check=False), "its account")
        yield cluster
    finally:
        run([KUBECTL, "delete", "namespace", name, "--wait=false"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with use_namespace() as cluster:
        yield cluster
