"""Read the training pods of a run: their node rank, the pod with the console, and their Events.

Labels: training operator v1.9, as its SDK names them; mpi-operator v2beta1 (`job-role`); JobSet with indexed Jobs
(TrainJob).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kubeflow.training.constants.constants import (
    JOB_PARAMETERS,
    JOB_ROLE_LABEL,
    PYTORCHJOB_KIND,
    REPLICA_INDEX_LABEL,
    REPLICA_TYPE_LABEL,
)

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.workloads import Workload, sort_by_age

CONTAINER = str(JOB_PARAMETERS[PYTORCHJOB_KIND]["container"])
JOBSET = "jobset.sigs.k8s.io/replicatedjob-name"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


def place_of(pod: Mapping[str, Any]) -> tuple[str, int]:
    """Return (role, index) of a training pod: ("worker", 0), ("master", 0), ("launcher", 0), ("node", 0)."""
    labels = pod["metadata"].get("labels") or {}
    role = labels.get(REPLICA_TYPE_LABEL) or labels.get(JOB_ROLE_LABEL) or labels.get(JOBSET) or ""
    index = labels.get(REPLICA_INDEX_LABEL) or labels.get(COMPLETION_INDEX) or "0"
    return str(role).lower(), int(index) if str(index).isdigit() else 0


def console_pod(pods: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the pod with rank 0's console: the launcher, else the master, else the newest pod of index 0."""
    first = {role: pod for pod in sort_by_age(pods) for role, index in [place_of(pod)] if index == 0}
    for role in ("launcher", "master", "worker", "node"):
        if role in first:
            return first[role]
    return next(iter(first.values()), None)


def node_rank(pod: Mapping[str, Any], has_master: bool) -> int | None:
    """Return the node rank of this pod; None for a launcher, which has only a launcher process."""
    role, index = place_of(pod)
    if role == "launcher":
        return None
    return index + 1 if has_master and role == "worker" else index


def training_container(pod: Mapping[str, Any]) -> str:
    """Return the training container: `pytorch` in most APIs, `node` in a TrainJob, else the pod's first container."""
    names = [str(container["name"]) for container in pod["spec"]["containers"]]
    return CONTAINER if CONTAINER in names else names[0]


def container_status(pod: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    """Return Kubernetes' ContainerStatus; {} before the kubelet has written one."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((status for status in statuses if status["name"] == container), {})


def has_log(pod: Mapping[str, Any], container: str) -> bool:
    """Return whether the container has started, now or before."""
    status = container_status(pod, container)
    state = status.get("state") or {}
    return bool("running" in state or "terminated" in state or status.get("restartCount"))


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Return whether all containers of this pod have ended permanently."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


NO_STATUS_S = 60.0


def read_events(connection: Connection, uid: str) -> list[dict[str, Any]] | None:
    """Return the Events about the object `uid`, oldest first; None if this account may not read them."""
    query = {"fieldSelector": f"involvedObject.uid={uid}"}
    try:
        items = connection.get(f"{connection.core}/events", query)["items"]
    except ClusterError as failure:
        if failure.status != 403:
            raise
        return None
    return sorted(items, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))


def format_event(event: Mapping[str, Any], *, with_count: bool = True) -> str:
    """Format an event as one line: "Warning FailedCreatePod: pods ... is forbidden (5 times)"."""
    count = event.get("count") or (event.get("series") or {}).get("count") or 1
    times = f" ({count} times)" if count > 1 and with_count else ""
    text = f"{event.get('type', '')} {event.get('reason', '')}: {event.get('message', '')}"
    return " ".join(text.split()) + times


def explain_no_status(connection: Connection, workload: Workload) -> list[str]:
    """Explain why a workload has had no status for a minute."""
    api, since = workload.api, f"{workload.title} has no status after {NO_STATUS_S:.0f} s"
    try:
        events = read_events(connection, workload.uid)
    except ClusterError as failure:
        return [str(failure)]
    if events is None:
        describe = f"kubectl describe {api.plural}.{api.group} {workload.name} -n {workload.namespace}"
        return [f"{since}: its Events give the reason, or no operator reconciles {api.group_version} {api.kind}. "
                f"This account may not read Events: {describe}"]  # fmt: skip
    worrying = [event for event in events if event.get("type") == "Warning"] or events
    lines = list(dict.fromkeys(format_event(event) for event in worrying))
    if lines:
        return [f"{since}; its Events:", *(f"  {line}" for line in lines)]
    return [f"{since}: no operator reconciles {api.group_version} {api.kind}; "
            f"check that the operator runs and watches namespace {workload.namespace}"]  # fmt: skip
