"""Check which of the four workload APIs the cluster serves, and whether operators act on them.

Used by `stratlab check`. To test the training operator, a PyTorchJob of one pod is created, followed to its end, read
and removed.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.pod_phase import PodRefused, explain_refusal
from stratlab.cluster.pod_template import PodRequest, PodResources, build_pod
from stratlab.cluster.pods import CONTAINER
from stratlab.cluster.workloads import APIS, SUCCEEDED, TrainingJobs
from stratlab.namespace_checks import ask, say_refused, unseen
from stratlab_spec.findings import Finding

OLDEST = (1, 9)
INSTALL = 'kubectl apply --server-side -k "github.com/kubeflow/trainer.git/manifests/overlays/standalone?ref=v1.9.4"'
# operator of an API, by the beginning of its Deployment's name, and its default namespace
OPERATORS = {
    "pytorchjob": ("training-operator", "kubeflow"),
    "mpijob-v1": ("training-operator", "kubeflow"),
    "mpijob-v2beta1": ("mpi-operator", "mpi-operator"),
    "trainjob": ("kubeflow-trainer", "kubeflow-system"),
}


SUBJECT = "a small PyTorchJob"
PATIENCE_S = 120
LOOK_S = 10
WORD = "stratlab-check: it runs"
COMMAND = ["python", "-c", f"print({WORD!r})"]


def check_apis(connection: Connection) -> Iterator[Finding]:
    """Yield one finding for the APIs, and one per operator that they need."""
    served = find_served(connection)
    if not served:
        seen = f"the cluster serves none of {', '.join(APIS)} [SL-no-workload-api]"
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
        fix = "keep one: the training operator without --enable-scheme=mpijob, or no mpi-operator"
        seen = (
            "one definition serves v1 and v2beta1, although they are two APIs of two operators "
            "[SL-two-mpijob-apis]"
        )
        yield Finding("warning", "mpijobs.kubeflow.org", seen, fix)
    for name, place in dict.fromkeys(OPERATORS[api] for api in served):
        yield check_operator(connection, name, place)


def find_served(connection: Connection) -> list[str]:
    """Return the names of the workload APIs that the API server serves."""
    served = []
    for api in APIS.values():
        listed = ask(connection, f"/apis/{api.group_version}")
        names = [each["name"] for each in listed["resources"]] if isinstance(listed, dict) else []
        if api.plural in names:
            served.append(api.name)
    return served


def check_operator(connection: Connection, name: str, place: str) -> Finding:
    """Find the operator's Deployment in the cluster, or in its default namespace if only that is readable."""
    listed = ask(connection, "/apis/apps/v1/deployments")
    if listed == 403:
        listed = ask(connection, f"/apis/apps/v1/namespaces/{place}/deployments")
    if listed == 403:
        return unseen(name, "Deployments; without an operator a run stays without status")
    items = listed["items"] if isinstance(listed, dict) else []
    found = [each for each in items if each["metadata"]["name"].startswith(name)]
    if not found:
        seen = "the Deployment does not exist, so no operator acts on a run [SL-operator-absent]"
        return Finding("problem", name, seen, INSTALL)
    return judge_operator(name, found[0])


def judge_operator(name: str, deployment: Mapping[str, Any]) -> Finding:
    """Judge whether the operator is ready, and of a tested version."""
    namespace, full = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
    if not (deployment.get("status") or {}).get("readyReplicas", 0):
        wanted = deployment["spec"].get("replicas", 1)
        fix = f"kubectl -n {namespace} describe deployment {full}; kubectl -n {namespace} logs deployment/{full}"
        seen = f"{namespace}/{full}: 0 of {wanted} pods are ready [SL-operator-not-ready]"
        return Finding("problem", name, seen, fix)
    version, where = read_version(deployment), f"{namespace}/{full} is ready"
    number = ".".join(map(str, version)) if version else "unknown"
    if name == "training-operator" and version is None:
        return Finding("ok", name, f"{where}; its version is unknown, 1.9 or later is needed")
    if name == "training-operator" and version and version < OLDEST:
        seen = f"{where}, version {number} [SL-operator-old]"
        return Finding("warning", name, seen, f"1.9 or later: {INSTALL}")
    return Finding("ok", name, f"{where}, version {number}")


def read_version(deployment: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return major and minor version from the tag of the image, or from the label."""
    images = [each["image"] for each in deployment["spec"]["template"]["spec"]["containers"]]
    tags = [image.rpartition("/")[2].partition(":")[2] for image in images]
    labels = deployment["metadata"].get("labels") or {}
    for text in (*tags, labels.get("app.kubernetes.io/version", "")):
        if found := re.match(r"v?(\d+)\.(\d+)", text):
            return int(found[1]), int(found[2])
    return None


def check_small_job(
    connection: Connection, image: str, progress: Callable[[str], None], patience_s: int = PATIENCE_S
) -> Iterator[Finding]:
    """Return one finding: whether the job succeeded, with the operator's variables, or the obstacle."""
    jobs, name, began = TrainingJobs(connection), f"stratlab-check-{uuid.uuid4().hex[:8]}", time.monotonic()
    try:
        jobs.create(build_job(name, connection.namespace, image, connection.pod_resources))
    except ClusterError as failure:
        if refused := explain_refusal(str(failure)):
            yield say_refused(SUBJECT, refused)
            return
        is_denied = failure.status == 403
        fix = "the Role stratlab-user allows it" if is_denied else ""
        yield Finding("warning" if is_denied else "problem", SUBJECT, f"not created: {failure}", fix)
        return
    progress(f"PyTorchJob {name} was created")
    try:
        end, refused = "", None
        while not end and not refused and (left_s := patience_s - (time.monotonic() - began)) > 0:
            end = jobs.wait(name, max(1, math.ceil(min(LOOK_S, left_s))))
            refused = None if end else find_refusal(connection, name)
        if refused:
            yield say_refused(SUBJECT, refused)
        else:
            yield judge(jobs, name, end, time.monotonic() - began, connection.namespace)
    except ClusterError as failure:
        yield Finding("problem", SUBJECT, str(failure))
    finally:
        jobs.delete(name)


def find_refusal(connection: Connection, name: str) -> PodRefused | None:
    """Return why the operator may not create the job's pod, from its events; None if they give another reason."""
    query = {"fieldSelector": f"involvedObject.name={name},type=Warning"}
    events = ask(connection, f"{connection.core}/events", query)
    items = events["items"] if isinstance(events, dict) else []
    messages = [str(event.get("message", "")) for event in items]
    return next(filter(None, map(explain_refusal, reversed(messages))), None)


def judge(jobs: TrainingJobs, name: str, end: str, time_s: float, namespace: str) -> Finding:
    """Judge the condition in which the job ended, or "", and the log of its pod."""
    if not end:
        held = jobs.read_conditions(name)
        if not held:
            seen = (
                f"{name} has no status after {time_s:.0f} s: no operator acts on namespace {namespace} "
                "[SL-job-no-operator]"
            )
            return Finding("problem", SUBJECT, seen, INSTALL)
        seen = f"{name} has not ended after {time_s:.0f} s; its state is {held[-1]} [SL-job-not-ended]"
        fix = f"kubectl -n {namespace} describe pods shows what its pod waits for"
        return Finding("problem", SUBJECT, seen, fix)
    logs = jobs.read_logs(name)
    if end != SUCCEEDED:
        last = [text.strip().splitlines()[-1] for text in logs.values() if text.strip()]
        said = "; ".join(last) or "the log of its pod is empty"
        return Finding("problem", SUBJECT, f"{name} is {end}: {said} [SL-job-failed]")
    if not any(WORD in text for text in logs.values()):
        seen = f"{name} is {end}, but the log of its pod is not readable [SL-job-log-unread]"
        return Finding("warning", SUBJECT, seen)
    return Finding("ok", SUBJECT, f"the operator started its pod, which ended after {time_s:.0f} s; log read")


def build_job(name: str, namespace: str, image: str, resources: PodResources | None = None) -> dict[str, Any]:
    """Build a job of one pod, restricted as stratlab's own pods, without a claim."""
    request = PodRequest(claim=None, image=image, component="check", deadline_s=PATIENCE_S)
    pod = build_pod(COMMAND, request, resources)
    spec, labels = pod["spec"], pod["metadata"]["labels"]
    del spec["restartPolicy"]
    spec["containers"][0]["name"] = CONTAINER  # the operator requires this name
    template = {"metadata": {"labels": labels}, "spec": spec}
    replica = {"replicas": 1, "restartPolicy": "Never", "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "nprocPerNode": "1",
            "pytorchReplicaSpecs": {"Master": replica},
            "runPolicy": {
                "activeDeadlineSeconds": PATIENCE_S,
                "ttlSecondsAfterFinished": 60,
                "backoffLimit": 0,
            },
        },
    }
