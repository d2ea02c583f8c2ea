"""The manifests on a real cluster: claims, MLflow under its Service's name, rights, data that survives the pod."""

import json
from typing import Any

import pytest

from tests.cluster.lab import HELM, HELM3, ROOT, Lab, build_list, build_object, run

pytestmark = pytest.mark.cluster

USER = "ana@example.com"
API = "api/2.0/mlflow"
FILE = "api/2.0/mlflow-artifacts/artifacts/1/file.txt"
# (status, body) of each request
CALL = """
import json, sys, urllib.error, urllib.request
found = []
for method, url, body in json.loads(sys.argv[1]):
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request("http://" + url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            found.append((answer.status, answer.read().decode()))
    except urllib.error.HTTPError as failure:
        found.append((failure.code, failure.read().decode()))
print(json.dumps(found))
"""


def call(lab: Lab, *requests: tuple[str, str, Any]) -> list[tuple[int, str]]:
    """The answers that a pod of component `test` gets, which is restricted like all others."""
    printed = lab.on_volume("python", "-c", CALL, json.dumps(requests), component="test")
    return [(code, body) for code, body in json.loads(printed)]


def test_claims_are_bound(lab: Lab) -> None:
    claims = lab.get("persistentvolumeclaims")["items"]
    found = {claim["metadata"]["name"]: claim["status"]["phase"] for claim in claims}
    assert found == dict.fromkeys(("mlflow", "stratlab-results"), "Bound")


def test_mlflow_answers_by_its_names_and_keeps_its_data(lab: Lab) -> None:
    address = lab.kubectl("get", "service", "mlflow", "-o", "jsonpath={.spec.clusterIP}")
    search = f":5000/{API}/experiments/search?max_results=1"
    ends = ("", *(f".{lab.namespace}{end}" for end in ("", ".svc", ".svc.cluster.local")))
    answers = call(
        lab, *(("GET", f"mlflow{end}{search}", None) for end in ends),
        ("GET", f"{address}:5000/health", None),
        ("POST", f"mlflow:5000/{API}/experiments/create", {"name": "kept"}),
        ("PUT", f"mlflow:5000/{FILE}", "some text"), ("GET", f"{address}{search}", None),
        ("GET", "mlflow:5000/ajax-api/3.0/jobs/1", None),
    )  # fmt: skip
    codes = [code for code, _ in answers]
    assert codes[:-1] == [200] * 7 + [403], "by its address it is refused"
    assert codes[-1] >= 400, "job execution is off"

    lab.kubectl("delete", "pods", "-l", "app.kubernetes.io/name=mlflow", "--wait=true")
    lab.kubectl("rollout", "status", "deployment/mlflow", "--timeout=300s")
    named = f"mlflow:5000/{API}/experiments/get-by-name?experiment_name=kept"
    kept, file = call(lab, ("GET", named, None), ("GET", f"mlflow:5000/{FILE}", None))
    assert kept[0] == 200 and file == (200, '"some text"')


# verb, group, resource: what helm, watch and check need, also of kinds that the cluster does not serve
MAY = {
    "user": [
        "create  secrets", "create kubeflow.org pytorchjobs", "delete trainer.kubeflow.org trainjobs",
        "get  pods/log",
    ],
    "analysis": ["watch kubeflow.org pytorchjobs", "list trainer.kubeflow.org trainjobs"],
}  # fmt: skip
MAY_NOT = {
    "user": [
        "create  pods/exec", "delete  persistentvolumeclaims", "delete apps deployments",
        "create rbac.authorization.k8s.io rolebindings", "create  serviceaccounts/token",
    ],
    "analysis": ["get  secrets", "list  pods", "patch kubeflow.org pytorchjobs", "create batch jobs"],
}  # fmt: skip


def ask(lab: Lab, who: str, rights: list[str], namespace: str) -> list[bool]:
    account = {"user": USER, "analysis": f"system:serviceaccount:{lab.namespace}:stratlab-analysis"}[who]
    reviews = []
    for verb, group, resource in (right.split(" ") for right in rights):
        name, _, part = resource.partition("/")
        asked = {"namespace": namespace, "verb": verb, "group": group, "resource": name, "subresource": part}
        review = build_object("SubjectAccessReview", "", {"user": account, "resourceAttributes": asked})
        reviews.append(review | {"apiVersion": "authorization.k8s.io/v1", "metadata": {}})
    answer = ("create", "-f", "-", "-o", "jsonpath={.status.allowed} ")
    return [word == "true" for word in lab.kubectl(*answer, text=build_list(reviews)).split()]


def test_rights_and_what_they_are_enough_for(lab: Lab) -> None:
    """With the rights of the Role alone a run is installed, upgraded, removed; it waits suspended."""
    lab.kubectl("create", "rolebinding", "ana", "--role=stratlab-user", f"--user={USER}")
    for who in MAY:
        assert all(ask(lab, who, MAY[who], lab.namespace)), who
        assert not any(ask(lab, who, MAY_NOT[who], lab.namespace)), who
        assert not any(ask(lab, who, MAY[who], "default")), who
    chart, settings = ROOT / "charts" / "ddp", ("--set", "run.suspend=true,run.accelerator=")
    for program in (HELM, HELM3):
        as_user = [program, "-n", lab.namespace, "--kube-as-user", USER]
        run([*as_user, "install", "as-user", chart, *settings])
        assert "as-user" in lab.kubectl("get", "pytorchjobs", "-o", "name")
        changed = ("--set", "run.analysis.ttlSecondsAfterFinished=60")
        run([*as_user, "upgrade", "as-user", chart, *settings, *changed])
        run([*as_user, "uninstall", "as-user"])
        assert lab.kubectl("get", "pytorchjobs,jobs", "-o", "name") == ""
