"""Follows one release to its end: its custom resource, then its analysis Job. By watching, not by asking again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.job_end import ANALYSIS, COMPONENT, find_failed_waiter, pick_jobs, read_job_end
from stratlab.cluster.patience import Patience
from stratlab.cluster.pod_phase import describe, has_started
from stratlab.cluster.watching import ADDED, DELETED, SYNCED, watch
from stratlab.cluster.workloads import ENDED, NO_STATUS, SUCCEEDED, Workload
from stratlab.sweep.planned_release import Planned


@dataclass(frozen=True)
class Outcome:
    """How a release ended, training and analysis together."""

    succeeded: bool
    sentence: str


def follow_release(
    connection: Connection, namespace: str, planned: Planned, show: Callable[[str], None]
) -> Outcome:
    """Returns when training and analysis have ended. `show` gets what the release is doing whenever that changes.

    Raises:
        ClusterError: it cannot be watched: no right, no such API.
    """
    stop = threading.Event()
    seen = {"resource": "", "pods": ""}

    def show_both(part: str, text: str) -> None:
        seen[part] = text
        show("; ".join(filter(None, seen.values())))

    arguments = (connection, namespace, planned.release.name, partial(show_both, "pods"), stop)
    threading.Thread(target=_show_waiting_pods, args=arguments, daemon=True).start()
    try:
        trained = _follow_training(connection, namespace, planned, partial(show_both, "resource"))
        if not planned.has_analysis:
            return trained
        analysed = _follow_analysis(connection, namespace, planned.release.name, show)
    finally:
        stop.set()
    sentence = f"{trained.sentence}; {analysed.sentence}"
    return Outcome(trained.succeeded and analysed.succeeded, sentence)


def _follow_training(
    connection: Connection, namespace: str, planned: Planned, show: Callable[[str], None]
) -> Outcome:
    name, api = planned.release.name, planned.api
    query = {"fieldSelector": f"metadata.name={name}"}
    there = False
    for kind, changed in watch(connection, api.path(namespace), query, Patience(say=show)):
        if kind == DELETED or (kind == SYNCED and not there):
            return Outcome(False, f"its {api.kind} was removed before it had ended")
        there = True
        if kind == SYNCED:
            continue
        workload = Workload(api, changed)
        hint = ": no operator has looked at it" if workload.state == NO_STATUS else ""
        show(f"{api.kind} {workload.state}{hint}")
        if workload.state in ENDED:
            said = f": {workload.message}" if workload.state != SUCCEEDED and workload.message else ""
            return Outcome(workload.state == SUCCEEDED, f"{api.kind} {workload.state}{said}")
    raise AssertionError("a watch without an end ended")


def _follow_analysis(
    connection: Connection, namespace: str, name: str, show: Callable[[str], None]
) -> Outcome:
    """A run that was upgraded has several Jobs; one that is complete is enough."""
    query = {"labelSelector": f"app.kubernetes.io/instance={name}"}
    jobs: dict[str, Mapping[str, Any]] = {}
    synced = False
    show("analysis")
    for kind, changed in watch(
        connection, f"/apis/batch/v1/namespaces/{namespace}/jobs", query, Patience(say=show)
    ):
        if kind == SYNCED:
            synced = True
        elif kind == DELETED:
            jobs.pop(changed["metadata"]["name"], None)
        else:
            jobs[changed["metadata"]["name"]] = changed
        ends = [
            read_job_end(find_failed_waiter(job, jobs.values()) or job)
            for job in pick_jobs(jobs.values(), ANALYSIS)
        ]
        if any(end == "" for end in ends):
            return Outcome(True, "analysis Complete")
        if synced and all(end is not None for end in ends):
            reason = "; ".join(end for end in ends if end)
            # an ended Job goes by itself after ttlSecondsAfterFinished: nothing can be said about it then
            return Outcome(not ends, f"analysis Failed: {reason}" if ends else "the analysis Job is gone")
    raise AssertionError("a watch without an end ended")


def _show_waiting_pods(
    connection: Connection, namespace: str, name: str, show: Callable[[str], None], stop: threading.Event
) -> None:
    """A pod without a node or an image waits for ever and the resource says nothing: shown, never decided on."""
    query = {"labelSelector": f"app.kubernetes.io/instance={name},{COMPONENT}=training"}
    told: dict[str, str] = {}
    try:
        for kind, pod in watch(
            connection, f"/api/v1/namespaces/{namespace}/pods", query, Patience(stop=stop)
        ):
            if kind in (SYNCED, DELETED):
                continue
            pod_name = pod["metadata"]["name"]
            text = "" if has_started(pod) or (kind == ADDED and not pod.get("status")) else describe(pod)
            if told.get(pod_name, "") != text and not stop.is_set():
                told[pod_name] = text
                waiting = [f"pod {each} {told[each]}" for each in told if told[each]]
                show(waiting[0] if waiting else "")
    except ClusterError:
        return  # no right to see pods: the resource is followed all the same
