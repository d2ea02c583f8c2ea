"""Does the training operator act? A PyTorchJob of one pod is created, followed to its end, read and removed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from stratlab.check.finding import Finding
from stratlab.check.workload_checks import INSTALL
from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.pod_template import PodRequest, build_pod
from stratlab.cluster.pods import CONTAINER
from stratlab.cluster.training import Jobs
from stratlab.cluster.workloads import SUCCEEDED

SUBJECT = "a small PyTorchJob"
PATIENCE_S = 120
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
    job = build_job(f"stratlab-check-{uuid.uuid4().hex[:8]}", namespace, image)
    name, began = job["metadata"]["name"], time.monotonic()
    try:
        jobs.create(job)
    except ClusterError as failure:
        fix = "the Role stratlab-user allows it" if failure.status == 403 else ""
        yield Finding(
            "warning" if failure.status == 403 else "problem", SUBJECT, f"not created: {failure}", fix
        )
        return
    progress(f"PyTorchJob {name} is there")
    try:
        yield judge(jobs, name, jobs.wait(name, patience_s), time.monotonic() - began, namespace)
    except ClusterError as failure:
        yield Finding("problem", SUBJECT, str(failure))
    finally:
        jobs.delete(name)


def judge(jobs: Jobs, name: str, end: str, time_s: float, namespace: str) -> Finding:
    """From the condition in which the job ended, or "", and from the log of its pod."""
    if not end:
        held = jobs.read_conditions(name)
        if not held:
            seen = f"{name} has no status after {time_s:.0f} s: no operator acts on namespace {namespace}"
            return Finding("problem", SUBJECT, seen, INSTALL)
        seen = f"{name} has not ended after {time_s:.0f} s, it is {held[-1]}"
        return Finding(
            "problem", SUBJECT, seen, f"kubectl -n {namespace} describe pods shows what its pod waits for"
        )
    logs = jobs.read_logs(name)
    if end != SUCCEEDED:
        last = [text.strip().splitlines()[-1] for text in logs.values() if text.strip()]
        return Finding(
            "problem", SUBJECT, f"{name} is {end}: {'; '.join(last) or 'and its pod has said nothing'}"
        )
    if not any(WORD in text for text in logs.values()):
        return Finding("warning", SUBJECT, f"{name} is {end}, but the log of its pod cannot be read")
    return Finding("ok", SUBJECT, f"the operator started its pod, which ended after {time_s:.0f} s; log read")


def build_job(name: str, namespace: str, image: str) -> dict[str, Any]:
    """One pod as restricted as those that stratlab starts itself, without a claim."""
    pod = build_pod(COMMAND, PodRequest(claim=None, image=image, component="check", deadline_s=PATIENCE_S))
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
