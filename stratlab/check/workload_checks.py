"""Which of the four workload APIs the cluster serves, and whether somebody acts on them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from stratlab.check.finding import Finding, ask, unseen
from stratlab.cluster.connection import Connection
from stratlab.cluster.workloads import APIS

OLDEST = (1, 9)
INSTALL = 'kubectl apply --server-side -k "github.com/kubeflow/trainer.git/manifests/overlays/standalone?ref=v1.9.4"'
# what acts on an API, by the beginning of its Deployment's name, and where it is installed by default
OPERATORS = {
    "pytorchjob": ("training-operator", "kubeflow"),
    "mpijob-v1": ("training-operator", "kubeflow"),
    "mpijob-v2beta1": ("mpi-operator", "mpi-operator"),
    "trainjob": ("kubeflow-trainer", "kubeflow-system"),
}


def check_apis(connection: Connection) -> Iterator[Finding]:
    """One line for the APIs, one per operator that is needed for them."""
    served = find_served(connection)
    if not served:
        seen = f"none of {', '.join(APIS)} is served [SL-no-workload-api]"
        yield Finding("problem", "workload APIs", seen, INSTALL)
        return
    text = "served: " + ", ".join(served)
    if "pytorchjob" in served:
        yield Finding("ok", "workload APIs", text)
    else:
        fix = f"--set run.workload.api={served[0]}, or install the training operator: {INSTALL}"
        seen = f"{text}; the charts' default, pytorchjob, is not [SL-default-api-missing]"
        yield Finding("warning", "workload APIs", seen, fix)
    if {"mpijob-v1", "mpijob-v2beta1"} <= set(served):
        yield Finding(
            "warning",
            "mpijobs.kubeflow.org",
            "v1 and v2beta1 are served by one definition, though they are two APIs of two operators "
            "[SL-two-mpijob-apis]",
            "keep one: the training operator without --enable-scheme=mpijob, or no mpi-operator",
        )
    for name, place in dict.fromkeys(OPERATORS[api] for api in served):
        yield check_operator(connection, name, place)


def find_served(connection: Connection) -> list[str]:
    """Names of the workload APIs that the API server knows."""
    served = []
    for api in APIS.values():
        listed = ask(connection, f"/apis/{api.group_version}")
        names = [each["name"] for each in listed["resources"]] if isinstance(listed, dict) else []
        if api.plural in names:
            served.append(api.name)
    return served


def check_operator(connection: Connection, name: str, place: str) -> Finding:
    """Its Deployment anywhere in the cluster, or where it is by default if only that may be seen."""
    listed = ask(connection, "/apis/apps/v1/deployments")
    if listed == 403:
        listed = ask(connection, f"/apis/apps/v1/namespaces/{place}/deployments")
    if listed == 403:
        return unseen(name, "Deployments; a run that stays without status shows that no operator is alive")
    items = listed["items"] if isinstance(listed, dict) else []
    found = [each for each in items if each["metadata"]["name"].startswith(name)]
    if not found:
        seen = "there is no such Deployment, so nothing acts on a run [SL-operator-absent]"
        return Finding("problem", name, seen, INSTALL)
    return judge_operator(name, found[0])


def judge_operator(name: str, deployment: Mapping[str, Any]) -> Finding:
    """Ready, and of a version that was tried."""
    namespace = deployment["metadata"]["namespace"]
    full = deployment["metadata"]["name"]
    ready = (deployment.get("status") or {}).get("readyReplicas", 0)
    if not ready:
        wanted = deployment["spec"].get("replicas", 1)
        fix = f"kubectl -n {namespace} describe deployment {full}; kubectl -n {namespace} logs deployment/{full}"
        seen = f"{namespace}/{full}: 0 of {wanted} pods are ready [SL-operator-not-ready]"
        return Finding("problem", name, seen, fix)
    version = read_version(deployment)
    where = f"{namespace}/{full} is ready"
    if name != "training-operator":
        return Finding("ok", name, f"{where}, version {version_text(version)}")
    if version is None:
        return Finding("ok", name, f"{where}; its version cannot be seen, 1.9 or later is needed")
    if version < OLDEST:
        seen = f"{where}, version {version_text(version)} [SL-operator-old]"
        return Finding("warning", name, seen, f"1.9 or later: {INSTALL}")
    return Finding("ok", name, f"{where}, version {version_text(version)}")


def read_version(deployment: Mapping[str, Any]) -> tuple[int, int] | None:
    """Major and minor from the tag of the image, or from the label."""
    images = [each["image"] for each in deployment["spec"]["template"]["spec"]["containers"]]
    labels = deployment["metadata"].get("labels") or {}
    for text in (
        *(image.rpartition("/")[2].partition(":")[2] for image in images),
        labels.get("app.kubernetes.io/version", ""),
    ):
        if found := re.match(r"v?(\d+)\.(\d+)", text):
            return int(found[1]), int(found[2])
    return None


def version_text(version: tuple[int, int] | None) -> str:
    return ".".join(map(str, version)) if version else "unknown"
