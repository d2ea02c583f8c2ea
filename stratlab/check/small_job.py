"""Does the training operator act? A PyTorchJob of one pod is created, followed to its end, read and removed."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from stratlab.check.finding import Finding, ask, say_refused
from stratlab.check.workload_checks import INSTALL
from stratlab.cluster import ClusterError
from stratlab.cluster.admission import PodRefused, explain_refusal
from stratlab.cluster.connection import Connection
from stratlab.cluster.pod_resources import PodResources
from stratlab.cluster.pod_template import PodRequest, build_pod
from stratlab.cluster.pods import CONTAINER
from stratlab.cluster.training import Jobs
from stratlab.cluster.workloads import SUCCEEDED

SUBJECT = "a small PyTorchJob"
PATIENCE_S = 120
LOOK_S = 10
WORD = "stratlab-check: it runs"
COMMAND = ["python", "-c", f"print({WORD!r})"]


def check_small_job(
    connection: Connection,
    namespace: str,
    image: str,
    progress: Callable[[str], None],
    patience_s: int = PATIENCE_S,
) -> Iterator[Finding]:
    """One line: whether it succeeded, with what the operator gives to its pods, or what kept it from that."""
    jobs = Jobs(connection, namespace)
    name = f"stratlab-check-{uuid.uuid4().hex[:8]}"
    job = build_job(name, namespace, image, connection.pod_resources)
    began = time.monotonic()
    try:
        jobs.create(job)
    except ClusterError as failure:
        if refused := explain_refusal(str(failure)):
            yield say_refused(SUBJECT, refused)
            return
        fix = "the Role stratlab-user allows it" if failure.status == 403 else ""
        yield Finding(
            "warning" if failure.status == 403 else "problem", SUBJECT, f"not created: {failure}", fix
        )
        return
    progress(f"PyTorchJob {name} is there")
    try:
        end, refused = "", None
        while not end and not refused and (left_s := patience_s - (time.monotonic() - began)) > 0:
            end = jobs.wait(name, max(1, math.ceil(min(LOOK_S, left_s))))
            refused = None if end else find_refusal(connection, namespace, name)
        if refused:
            yield say_refused(SUBJECT, refused)
        else:
            yield judge(jobs, name, end, time.monotonic() - began, namespace)
    except ClusterError as failure:
        yield Finding("problem", SUBJECT, str(failure))
    finally:
        jobs.delete(name)


def find_refusal(connection: Connection, namespace: str, name: str) -> PodRefused | None:
    """Why the operator may not make the pod of the job, as its events say; None where they say nothing of that kind."""
    query = {"fieldSelector": f"involvedObject.name={name},type=Warning"}
    events = ask(connection, f"/api/v1/namespaces/{namespace}/events", query)
    messages = (
        [str(event.get("message", "")) for event in events["items"]] if isinstance(events, dict) else []
    )
    return next(filter(None, map(explain_refusal, reversed(messages))), None)


def judge(jobs: Jobs, name: str, end: str, time_s: float, namespace: str) -> Finding:
    """From the condition in which the job ended, or "", and from the log of its pod."""
    if not end:
        held = jobs.read_conditions(name)
        if not held:
            seen = f"{name} has no status after {time_s:.0f} s: no operator acts on namespace {namespace} "
            seen += "[SL-job-no-operator]"
            return Finding("problem", SUBJECT, seen, INSTALL)
        seen = f"{name} has not ended after {time_s:.0f} s, it is {held[-1]} [SL-job-not-ended]"
        return Finding(
            "problem", SUBJECT, seen, f"kubectl -n {namespace} describe pods shows what its pod waits for"
        )
    logs = jobs.read_logs(name)
    if end != SUCCEEDED:
        last = [text.strip().splitlines()[-1] for text in logs.values() if text.strip()]
        said = "; ".join(last) or "and its pod has said nothing"
        return Finding("problem", SUBJECT, f"{name} is {end}: {said} [SL-job-failed]")
    if not any(WORD in text for text in logs.values()):
        seen = f"{name} is {end}, but the log of its pod cannot be read [SL-job-log-unread]"
        return Finding("warning", SUBJECT, seen)
    return Finding("ok", SUBJECT, f"the operator started its pod, which ended after {time_s:.0f} s; log read")


def build_job(name: str, namespace: str, image: str, resources: PodResources | None = None) -> dict[str, Any]:
    """One pod as restricted as those that stratlab starts itself, without a claim."""
    request = PodRequest(claim=None, image=image, component="check", deadline_s=PATIENCE_S)
    pod = build_pod(COMMAND, request, resources)
    spec = {key: value for key, value in pod["spec"].items() if key != "restartPolicy"}
    (container,) = spec["containers"]
    spec["containers"] = [container | {"name": CONTAINER}]  # the operator insists on the name
    labels = pod["metadata"]["labels"]
    replica = {
        "replicas": 1,
        "restartPolicy": "Never",
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }
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
