"""Describe a pod from its creation to its end: why it waits, why it cannot start, how it ended, why it was refused.

`follow_pod` follows pods that stratlab starts. `build_row` turns any pod into one row of a table.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection, Patience
from stratlab.cluster.pods import has_ended
from stratlab.cluster.watching import DELETED, SYNCED, Change, watch

UNSCHEDULED_S = 60.0  # an autoscaler or the binding of a claim may need this long
START_S = 600.0  # a large image on a new node
TICK_S, NEXT_TICK_S = 5.0, 15.0
HOPELESS = (
    *("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
)


@dataclass(frozen=True)
class PodEnd:
    """Describe how a pod ended; `reason` is Kubernetes' reason, "" after success."""

    exit_code: int
    reason: str


def follow_pod(
    connection: Connection, name: str, progress: Callable[[str], None]
) -> Generator[PodEnd | None]:
    """Yield None when the container has started or ended, then the end.

    Raises:
        ClusterError: the pod cannot start, or it was deleted.
    """
    began = time.monotonic()
    pod: Mapping[str, Any] = {}
    with ticking(progress, lambda: f"pod {name} {describe(pod)}"):
        for limit_s in (UNSCHEDULED_S, START_S):
            for kind, pod in _watch(connection, name, Patience(began + limit_s, say=progress)):
                if kind == DELETED:
                    raise ClusterError(
                        f"pod {name} was deleted from outside before it started [SL-pod-deleted-early]"
                    )
                if hopeless := why_hopeless(pod):
                    raise ClusterError(f"pod {name} cannot start: {hopeless} [SL-pod-hopeless]")
                if has_started(pod):
                    break
            if has_started(pod) or not is_scheduled(pod):
                break
    if not has_started(pod):
        raise ClusterError(
            f"pod {name} has not started after {time.monotonic() - began:.0f} s, it {describe(pod)}"
            f"{_read_last_event(connection, name)} [SL-pod-not-started]"
        )
    yield None
    for kind, pod in _watch(connection, name, Patience(say=progress)):
        if kind == DELETED:
            raise ClusterError(f"pod {name} was deleted from outside [SL-pod-deleted]")
        if has_ended(pod):
            yield build_end(pod)
            return


def read_end(name: str, ending: Iterator[PodEnd | None], deadline_s: int) -> PodEnd:
    """Return the end that `follow_pod` yields last.

    Raises:
        ClusterError: the pod was stopped because it ran longer than `deadline_s`.
    """
    end = next(ending)
    assert end
    if end.reason.startswith("DeadlineExceeded"):
        raise ClusterError(
            f"pod {name} was stopped because it ran longer than {deadline_s} s [SL-pod-too-long]"
        )
    return end


def describe(pod: Mapping[str, Any]) -> str:
    """Describe the state of the pod, in words that follow its name."""
    waiting = _container_state(pod, "waiting")
    if waiting:
        return f"waits: {waiting.get('reason', 'for its container')}"
    blocked = _unscheduled(pod)
    if blocked:
        return f"waits for a node: {blocked}"
    return "is running" if _container_state(pod, "running") else "waits for a node"


def why_hopeless(pod: Mapping[str, Any]) -> str:
    """Return why the container can never start, or "" while it may."""
    waiting = _container_state(pod, "waiting")
    if waiting.get("reason") in HOPELESS:
        return f"{waiting['reason']}: {waiting.get('message', '')}"
    blocked = _unscheduled(pod)
    return blocked if "persistentvolumeclaim" in blocked and "not found" in blocked else ""


def has_started(pod: Mapping[str, Any]) -> bool:
    """Return whether there is a log to read, or the pod has ended without one."""
    return has_ended(pod) or bool(_container_state(pod, "running") or _container_state(pod, "terminated"))


def is_scheduled(pod: Mapping[str, Any]) -> bool:
    """Return whether the pod is scheduled on a node."""
    return bool((pod.get("spec") or {}).get("nodeName"))


def build_end(pod: Mapping[str, Any]) -> PodEnd:
    """Build the end of a pod in phase Succeeded or Failed."""
    status = pod["status"]
    terminated = _container_state(pod, "terminated")
    said = [status.get("reason"), status.get("message"), terminated.get("reason"), terminated.get("message")]
    reason = ": ".join(str(text).strip() for text in said if text and text != "Completed")
    code = int(terminated.get("exitCode", 1))
    return PodEnd(code, reason if code or status["phase"] == "Failed" else "")


def _watch(connection: Connection, name: str, patience: Patience) -> Iterator[Change]:
    changes = watch(
        connection, f"{connection.core}/pods", {"fieldSelector": f"metadata.name={name}"}, patience
    )
    return (change for change in changes if change[0] != SYNCED)


def _container_state(pod: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return `waiting`, `running` or `terminated` of the only container; {} if it is in another state."""
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        if kind in container["state"]:
            return dict(container["state"][kind] or {}) or {"reason": kind}
    return {}


def _unscheduled(pod: Mapping[str, Any]) -> str:
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            text = str(condition.get("message") or condition.get("reason", ""))
            # without the scheduler's list of victims and claims that did not help either
            return text.partition(". no new claims")[0].partition(". preemption:")[0]
    return ""


def _read_last_event(connection: Connection, name: str) -> str:
    """Return the pod's last event, because Kubernetes reports FailedMount and similar failures in events only."""
    query = {"fieldSelector": f"involvedObject.name={name},type=Warning"}
    try:
        events = connection.get(f"{connection.core}/events", query)["items"]
    except ClusterError:
        return ""
    news = [
        each for each in events if each.get("reason") != "FailedScheduling"
    ]  # the pod's condition reports it
    return f" ({news[-1].get('reason')}: {news[-1].get('message')})" if news else ""


@contextmanager
def ticking(progress: Callable[[str], None], state: str | Callable[[], str]) -> Iterator[None]:
    """Report `state` and its duration after 5 s and then every 15 s, from a thread."""
    began, over = time.monotonic(), threading.Event()

    def tick() -> None:
        pause_s = TICK_S
        while not over.wait(pause_s):
            text = state if isinstance(state, str) else state()
            progress(f"{text}, {time.monotonic() - began:.0f} s")
            pause_s = NEXT_TICK_S

    thread = threading.Thread(target=tick, name="ticker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# Reasons of a normal start, which are not a problem.
NORMAL = ("ContainerCreating", "PodInitializing", "Completed")


@dataclass(frozen=True)
class PodRow:
    """Hold one pod as a row of a table.

    `note` is a reason, "" while there is no problem. `restarts` counts the container restarts of this pod.
    """

    name: str
    phase: str
    ready: str
    restarts: int
    node: str
    note: str

    def __str__(self) -> str:
        parts = [f"pod {self.name}: {self.phase}"]
        parts += [f"on {self.node}"] if self.node else []
        parts += [f"{self.restarts} restarts"] if self.restarts else []
        return ", ".join(parts) + (f": {self.note}" if self.note else "")


def build_row(pod: Mapping[str, Any]) -> PodRow:
    """Build the row from a Pod object of the API server."""
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    phase = "Terminating" if pod["metadata"].get("deletionTimestamp") else str(status.get("phase", "Pending"))
    return PodRow(
        name=str(pod["metadata"]["name"]),
        phase=phase,
        ready=f"{sum(bool(each.get('ready')) for each in containers)}/{len(pod['spec']['containers'])}",
        restarts=sum(int(each.get("restartCount", 0)) for each in containers),
        node=str(pod["spec"].get("nodeName", "")),
        note=_note(status),
    )


def _note(status: Mapping[str, Any]) -> str:
    """Return the first reason reported about the pod, its init containers or its containers."""
    if status.get("reason"):
        return _join(status["reason"], status.get("message"))
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return _join(condition.get("reason"), condition.get("message"))
    for each in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        state = each.get("state") or {}
        waiting, terminated = state.get("waiting") or {}, state.get("terminated") or {}
        last = (each.get("lastState") or {}).get("terminated") or {}
        if waiting.get("reason") and waiting["reason"] not in NORMAL:
            why = _join(waiting["reason"], waiting.get("message"))
            return why + (f" (before: {_describe_end(last)})" if last else "")
        if terminated and terminated.get("exitCode"):
            return _describe_end(terminated)
        if last.get("reason") == "OOMKilled":
            return f"before: {_describe_end(last)}"
    return ""


def _describe_end(terminated: Mapping[str, Any]) -> str:
    return f"{terminated.get('reason', 'Error')}, exit code {terminated.get('exitCode')}"


def _join(reason: Any, message: Any) -> str:
    return f"{reason}: {message}" if message else str(reason)


FORBIDDEN = re.compile(r"is forbidden: \[?(?P<why>.+?)\]?$", re.DOTALL)
EXCEEDED = re.compile(r"exceeded quota: (?P<quota>[^,]+)")
UNSPECIFIED = re.compile(r"failed quota: (?P<quota>[^:]+): must specify (?P<names>\S+)")
LIMIT_RANGE = re.compile(r"(minimum|maximum) \S+ usage per|max limit to request ratio per")


class PodRefused(ClusterError):
    """Report that a quota or LimitRange refuses a pod.

    `seen` describes the refusal and `fix` the solution. `passes` is true if the same pod may be accepted later.
    """

    def __init__(self, seen: str, fix: str, passes: bool) -> None:
        super().__init__(f"{seen}; {fix}", 422)
        self.seen, self.fix, self.passes = seen, fix, passes


def explain_refusal(message: str) -> PodRefused | None:
    """Build the refusal from a sentence of the API server or an event; None if the sentence is about something else."""
    why = " ".join((found["why"] if (found := FORBIDDEN.search(message)) else message).split())
    if found := UNSPECIFIED.search(why):
        names = found["names"].replace(",", "=AMOUNT,") + "=AMOUNT"
        fix = f"set them: --pod-resources {names}; for a run, run.resources and run.analysis.resources"
        return PodRefused(f"a quota refuses its pod: {why}", f"{fix} [SL-quota-unspecified]", passes=False)
    if EXCEEDED.search(why):
        fix = "wait for other pods to end, raise the quota, or request less with --pod-resources [SL-quota-exceeded]"
        return PodRefused(f"a quota refuses its pod: {why}", fix, passes=True)
    if LIMIT_RANGE.search(why):
        fix = "request amounts in that range: --pod-resources limits.NAME=AMOUNT,requests.NAME=AMOUNT [SL-limit-range]"
        return PodRefused(f"a LimitRange refuses its pod: {why}", fix, passes=False)
    return None
