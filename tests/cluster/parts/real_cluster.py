"""The cluster of KUBECONFIG: a namespace of one's own and small PyTorchJobs in it."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tenacity
from kubernetes.client import CoreV1Api, CustomObjectsApi
from kubernetes.client.exceptions import ApiException

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection, connect

INIT_IMAGE = "--pytorch-init-container-image="
RESULT = {"exit_code": 10, "reason": "accelerator out of memory", "message": "rank 1: out of memory"}


class RealCluster:
    """`namespace` is empty at first and enforces Pod Security `restricted`."""

    def __init__(self, connection: Connection, namespace: str, image: str) -> None:
        self.connection, self.namespace, self.image = connection, namespace, image
        self._custom = CustomObjectsApi(connection.client)

    def submit(self, name: str, script: str, **options: Any) -> dict[str, Any]:
        """A PyTorchJob. The operator's webhook may not answer for a while: it is stopped by tests of faults."""
        job = build_job(name, script, self.image, **options)
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda failure: "failed calling webhook" in str(failure)),
            wait=tenacity.wait_fixed(2),
            stop=tenacity.stop_after_delay(120),
            reraise=True,
        ):
            with attempt:
                return dict(
                    self._custom.create_namespaced_custom_object(
                        "kubeflow.org", "v1", self.namespace, "pytorchjobs", job
                    )
                )
        raise AssertionError("tenacity returns or raises")

    def delete(self, name: str) -> None:
        self._custom.delete_namespaced_custom_object(
            "kubeflow.org", "v1", self.namespace, "pytorchjobs", name
        )

    def suspend(self, name: str, suspended: bool) -> None:
        self._custom.patch_namespaced_custom_object(
            "kubeflow.org",
            "v1",
            self.namespace,
            "pytorchjobs",
            name,
            {"spec": {"runPolicy": {"suspend": suspended}}},
        )

    def pods(self) -> list[dict[str, Any]]:
        return list(self.connection.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"])

    def wait_until(self, condition: Callable[[], Any], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "not in time"
            time.sleep(0.3)


def build_job(
    name: str,
    script: str,
    image: str,
    *,
    workers: int = 1,
    restricted: bool = True,
    suspended: bool = False,
    restart: str = "ExitCode",
) -> dict[str, Any]:
    """As the charts make one, with a shell script in place of the trainer."""
    labels = {"app.kubernetes.io/instance": name, "app.kubernetes.io/component": "training"}
    container: dict[str, Any] = {"name": "pytorch", "image": image, "command": ["sh", "-c", script]}
    pod: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 1}
    if restricted:
        container["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        pod["securityContext"] = {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {
                "stratlab/run-directory": f"/results/demo/{name}",
                "stratlab/processes": str(workers),
            },
        },
        "spec": {
            "nprocPerNode": "1",
            "runPolicy": {"cleanPodPolicy": "None", "suspend": suspended},
            "elasticPolicy": {"minReplicas": workers, "maxReplicas": workers, "maxRestarts": 0},
            "pytorchReplicaSpecs": {
                "Worker": {
                    "replicas": workers,
                    "restartPolicy": restart,
                    "template": {"metadata": {"labels": labels}, "spec": pod},
                }
            },
        },
    }


def fail_with(result: dict[str, Any]) -> str:
    """A script that ends like the trainer does."""
    return f"echo '{json.dumps(result)}' > /dev/termination-log; exit {result['exit_code']}"


@contextmanager
def use_cluster() -> Iterator[RealCluster]:
    """Skips without KUBECONFIG. The namespace is removed at the end."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG is not set")
    name = f"{os.environ.get('STRATLAB_TEST_NAMESPACE', 'stratlab-test')}-{uuid.uuid4().hex[:6]}"
    connection = connect(namespace=name)
    core = CoreV1Api(connection.client)
    core.create_namespace(
        {"metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    )
    try:
        yield RealCluster(connection, name, find_image(connection))
    finally:
        core.delete_namespace(name)


def find_image(connection: Connection) -> str:
    """An image with a shell that every cluster with the operator has: that of its init containers."""
    try:
        deployments = connection.get("/apis/apps/v1/namespaces/kubeflow/deployments")["items"]
    except (ClusterError, ApiException) as failure:
        pytest.fail(f"no training operator in namespace kubeflow: {failure}")
    for deployment in deployments:
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            words = [*(container.get("command") or []), *(container.get("args") or [])]
            for word in words:
                if word.startswith(INIT_IMAGE):
                    return str(word.removeprefix(INIT_IMAGE))
    return "alpine:3.10"
