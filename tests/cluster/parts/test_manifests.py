"""The manifests on a real cluster: claims, MLflow under its Service's name, rights, data that survives the pod.

KUBECONFIG names the cluster, with a default StorageClass and the images of images/ on its nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.charts.rendering import CHARTS, find_program
from tests.manifests.kustomize import write_overlay

pytestmark = pytest.mark.cluster

NAMESPACE = "stratlab-test-manifests"
USER = "ana@example.com"
ANALYSIS = f"system:serviceaccount:{NAMESPACE}:stratlab-analysis"

# In a pod beside MLflow: (status, body) of each request, on a line of JSON.
CALL = """
import json, sys, urllib.error, urllib.request
for method, url, body in json.loads(sys.argv[1]):
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            print(json.dumps([answer.status, answer.read().decode()]))
    except urllib.error.HTTPError as failure:
        print(json.dumps([failure.code, failure.read().decode()]))
"""


def kubectl(*arguments: str, text: str | None = None, check: bool = True) -> str:
    command = [str(find_program("kubectl")), "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=400)
    assert not check or done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()


@pytest.fixture(scope="module", autouse=True)
def applied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """overlays/kind in a namespace of its own, removed afterwards."""
    assert os.environ.get("KUBECONFIG"), "KUBECONFIG names no cluster"
    overlay = write_overlay(tmp_path_factory.mktemp("overlay"), "kind", namespace=NAMESPACE)
    kubectl("apply", "-k", str(overlay))
    try:
        kubectl("create", "rolebinding", "ana", "--role=stratlab-user", f"--user={USER}")
        kubectl("rollout", "status", "deployment/mlflow", "--timeout=300s")
        yield
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--wait=true", "--timeout=120s")


def call(*requests: tuple[str, str, Any]) -> list[tuple[int, str]]:
    """The answers that a pod of component `test` gets, which is restricted like all others."""
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    container = {
        "name": "call",
        "image": "stratlab-lab:0.1.0",
        "command": ["python", "-c", CALL, json.dumps(requests)],
        "securityContext": security,
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    labels = {"app.kubernetes.io/component": "test", "app.kubernetes.io/part-of": "stratlab"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "call", "labels": labels}, "spec": spec}
    kubectl("apply", "-f", "-", text=yaml.safe_dump(pod))
    try:
        kubectl("wait", "pod/call", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
        return [tuple(json.loads(line)) for line in kubectl("logs", "call").splitlines()]
    finally:
        kubectl("delete", "pod", "call", "--wait=true")


def test_claims_are_bound() -> None:
    claims = json.loads(kubectl("get", "persistentvolumeclaims", "-o", "json"))["items"]
    assert {c["metadata"]["name"]: c["status"]["phase"] for c in claims} == {
        "mlflow": "Bound",
        "stratlab-results": "Bound",
    }


def test_mlflow_answers_by_its_names_and_keeps_its_data() -> None:
    api = "api/2.0/mlflow"
    ends = ("", f".{NAMESPACE}", f".{NAMESPACE}.svc", f".{NAMESPACE}.svc.cluster.local")
    reads = [("GET", f"http://mlflow{end}:5000/{api}/experiments/search?max_results=1", None) for end in ends]
    address = kubectl("get", "service", "mlflow", "-o", "jsonpath={.spec.clusterIP}")
    answers = call(
        *reads,
        ("GET", f"http://{address}:5000/{api}/experiments/search?max_results=1", None),
        ("GET", f"http://{address}:5000/health", None),
        ("POST", f"http://mlflow:5000/{api}/experiments/create", {"name": "kept"}),
        ("PUT", "http://mlflow:5000/api/2.0/mlflow-artifacts/artifacts/1/file.txt", "some text"),
        ("GET", "http://mlflow:5000/ajax-api/3.0/jobs/1", None),
    )
    codes = [code for code, _ in answers]
    assert codes[:4] == [200] * 4, answers
    assert codes[4] == 403 and "Invalid Host" in answers[4][1], "by its address"
    assert codes[5:8] == [200] * 3, answers
    assert codes[8] >= 400, "job execution is off"

    pod = kubectl("get", "pods", "-l", "app.kubernetes.io/name=mlflow", "-o", "name")
    kubectl("delete", pod, "--wait=true")
    kubectl("rollout", "status", "deployment/mlflow", "--timeout=300s")
    assert kubectl("get", "pods", "-l", "app.kubernetes.io/name=mlflow", "-o", "name") != pod
    kept, file = call(
        ("GET", f"http://mlflow:5000/{api}/experiments/get-by-name?experiment_name=kept", None),
        ("GET", "http://mlflow:5000/api/2.0/mlflow-artifacts/artifacts/1/file.txt", None),
    )
    assert kept[0] == 200 and file == (200, '"some text"')


MAY = {
    USER: [
        ("create", "", "secrets"),
        ("create", "kubeflow.org", "pytorchjobs"),
        ("patch", "kubeflow.org", "mpijobs"),
        ("delete", "trainer.kubeflow.org", "trainjobs"),
        ("create", "trainer.kubeflow.org", "trainingruntimes"),
        ("create", "batch", "jobs"),
        ("create", "", "pods"),
        ("get", "", "pods/log"),
        ("create", "", "pods/portforward"),
        ("list", "", "events"),
        ("get", "", "persistentvolumeclaims"),
        ("get", "", "serviceaccounts"),
    ],
    ANALYSIS: [
        ("watch", "kubeflow.org", "pytorchjobs"),
        ("get", "kubeflow.org", "mpijobs"),
        ("list", "trainer.kubeflow.org", "trainjobs"),
    ],
}
MAY_NOT = {
    USER: [
        ("create", "", "pods/exec"),
        ("delete", "", "persistentvolumeclaims"),
        ("delete", "apps", "deployments"),
        ("patch", "networking.k8s.io", "networkpolicies"),
        ("create", "rbac.authorization.k8s.io", "rolebindings"),
        ("create", "", "serviceaccounts/token"),
        ("update", "", "namespaces"),
    ],
    ANALYSIS: [
        ("get", "", "secrets"),
        ("list", "", "pods"),
        ("patch", "kubeflow.org", "pytorchjobs"),
        ("create", "", "pods/exec"),
        ("create", "batch", "jobs"),
    ],
}


def review(who: str, verb: str, group: str, resource: str, namespace: str) -> dict[str, Any]:
    """`kubectl auth can-i`, also of kinds that the cluster does not serve."""
    name, _, part = resource.partition("/")
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": name, "subresource": part}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": who, "resourceAttributes": attributes},
    }


def answers(reviews: list[dict[str, Any]]) -> list[bool]:
    text = kubectl("create", "-f", "-", "-o", "jsonpath={.status.allowed} ", text=yaml.safe_dump_all(reviews))
    return [word == "true" for word in text.split()]


@pytest.mark.parametrize("who", [USER, ANALYSIS])
def test_rights(who: str) -> None:
    for rights, expected in ((MAY[who], True), (MAY_NOT[who], False)):
        found = answers([review(who, *right, NAMESPACE) for right in rights])
        assert dict(zip(rights, found, strict=True)) == dict.fromkeys(rights, expected)
    assert answers([review(who, *right, "default") for right in MAY[who]]) == [False] * len(MAY[who])


@pytest.mark.parametrize("program", ["helm", "helm3"])
def test_a_user_installs_upgrades_and_removes_a_run(program: str) -> None:
    """With the rights of the Role alone. The run waits suspended: nothing is trained here."""
    chart = str(CHARTS / "ddp")

    def helm(*arguments: str) -> str:
        command = [str(find_program(program)), "--namespace", NAMESPACE, "--kube-as-user", USER, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"
        return done.stdout

    settings = ["--set", "run.suspend=true,run.accelerator="]
    helm("install", "as-user", chart, *settings)
    try:
        assert "as-user" in kubectl("get", "pytorchjobs", "-o", "name")
        helm("upgrade", "as-user", chart, *settings, "--set", "run.analysis.ttlSecondsAfterFinished=60")
        assert json.loads(helm("list", "--output", "json"))[0]["revision"] == "2"
    finally:
        helm("uninstall", "as-user")
    assert kubectl("get", "pytorchjobs,jobs", "-o", "name") == ""
