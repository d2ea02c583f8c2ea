"""Events of Kubernetes about one object, and what to say about a workload that no operator has touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.workloads import Workload

NO_STATUS_S = 60.0


def read_events(connection: Connection, namespace: str, uid: str) -> list[dict[str, Any]] | None:
    """The Events about the object `uid`, oldest first; None if this account may not read them."""
    query = {"fieldSelector": f"involvedObject.uid={uid}"}
    try:
        items = connection.get(f"/api/v1/namespaces/{namespace}/events", query)["items"]
    except ClusterError as failure:
        if failure.status != 403:
            raise
        return None
    return sorted(items, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))


def format_event(event: Mapping[str, Any], *, with_count: bool = True) -> str:
    """One line: "Warning FailedCreatePod: pods ... is forbidden (5 times)"."""
    count = event.get("count") or (event.get("series") or {}).get("count") or 1
    times = f" ({count} times)" if count > 1 and with_count else ""
    text = f"{event.get('type', '')} {event.get('reason', '')}: {event.get('message', '')}"
    return " ".join(text.split()) + times


def explain_no_status(workload: Workload, events: Iterable[Mapping[str, Any]] | None) -> list[str]:
    """Sentences for a workload that has had no status for a minute. `events` is None if they were not readable."""
    api, since = workload.api, f"{workload.title} has no status after {NO_STATUS_S:.0f} s"
    if events is None:
        describe = f"kubectl describe {api.plural}.{api.group} {workload.name} -n {workload.namespace}"
        return [f"{since}: either its Events say why, or no operator reconciles {api.group_version} {api.kind}. "
                f"This account may not read Events: {describe}"]  # fmt: skip
    events = list(events)
    worrying = [event for event in events if event.get("type") == "Warning"] or events
    lines = list(dict.fromkeys(format_event(event) for event in worrying))
    if lines:
        return [f"{since}; its Events:", *(f"  {line}" for line in lines)]
    return [f"{since}: no operator reconciles {api.group_version} {api.kind}; "
            f"is the operator running, and does it look after namespace {workload.namespace}?"]  # fmt: skip
