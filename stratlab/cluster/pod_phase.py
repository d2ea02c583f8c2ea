"""A pod of our own from its creation to its end: what it waits for, why it will never start, how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.patience import Patience
from stratlab.cluster.watching import DELETED, SYNCED, watch

UNSCHEDULED_S = 60.0  # an autoscaler or the binding of a claim may need as long
START_S = 600.0  # a large image on a new node
TICK_S, NEXT_TICK_S = 5.0, 15.0
HOPELESS = (
    *("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
)


@dataclass(frozen=True)
class PodEnd:
    """`reason` is what Kubernetes says about it, "" after success."""

    exit_code: int
    reason: str


def follow_pod(
    connection: Connection, namespace: str, name: str, progress: Callable[[str], None]
) -> Generator[PodEnd | None]:
    """Yields None when the container has started (or ended already), then the end.

    Raises:
        ClusterError: it will not start, or it was deleted.
    """
    began = time.monotonic()
    pod: Mapping[str, Any] = {}
    with ticking(progress, lambda: f"pod {name} {describe(pod)}"):
        for limit_s in (UNSCHEDULED_S, START_S):
            for kind, pod in _watch(connection, namespace, name, Patience(began + limit_s, say=progress)):
                if kind == DELETED:
                    raise ClusterError(
                        f"pod {name} was deleted by someone else before it started [SL-pod-deleted-early]"
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
            + _last_event(connection, namespace, name)
            + " [SL-pod-not-started]"
        )
    yield None
    for kind, pod in _watch(connection, namespace, name, Patience(say=progress)):
        if kind == DELETED:
            raise ClusterError(f"pod {name} was deleted by someone else [SL-pod-deleted]")
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            yield build_end(pod)
            return


def read_end(name: str, ending: Iterator[PodEnd | None], deadline_s: int) -> PodEnd:
    """The end that `follow_pod` yields last.

    Raises:
        ClusterError: the pod was ended because it took longer than `deadline_s`.
    """
    end = next(ending)
    assert end
    if end.reason.startswith("DeadlineExceeded"):
        raise ClusterError(f"pod {name} was stopped: it took longer than {deadline_s} s [SL-pod-too-long]")
    return end


def describe(pod: Mapping[str, Any]) -> str:
    """What the pod is doing, in words that follow its name."""
    waiting = _container_state(pod, "waiting")
    if waiting:
        return f"waits: {waiting.get('reason', 'for its container')}"
    blocked = _unscheduled(pod)
    if blocked:
        return f"waits for a node: {blocked}"
    return "is running" if _container_state(pod, "running") else "waits for a node"


def why_hopeless(pod: Mapping[str, Any]) -> str:
    """Why the container will never start; "" as long as it may."""
    waiting = _container_state(pod, "waiting")
    if waiting.get("reason") in HOPELESS:
        return f"{waiting['reason']}: {waiting.get('message', '')}"
    blocked = _unscheduled(pod)
    return blocked if "persistentvolumeclaim" in blocked and "not found" in blocked else ""


def has_started(pod: Mapping[str, Any]) -> bool:
    """Whether there is a log to read, or the pod has ended without one."""
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return ended or bool(_container_state(pod, "running") or _container_state(pod, "terminated"))


def is_scheduled(pod: Mapping[str, Any]) -> bool:
    """Whether a node has taken the pod."""
    return bool((pod.get("spec") or {}).get("nodeName"))


def build_end(pod: Mapping[str, Any]) -> PodEnd:
    """Of a pod in phase Succeeded or Failed."""
    status = pod["status"]
    terminated = _container_state(pod, "terminated")
    said = [status.get("reason"), status.get("message"), terminated.get("reason"), terminated.get("message")]
    reason = ": ".join(str(text).strip() for text in said if text and text != "Completed")
    code = int(terminated.get("exitCode", 1))
    return PodEnd(code, reason if code or status["phase"] == "Failed" else "")


def _watch(
    connection: Connection, namespace: str, name: str, patience: Patience
) -> Iterator[tuple[str, dict[str, Any]]]:
    query = {"fieldSelector": f"metadata.name={name}"}
    changes = watch(connection, f"/api/v1/namespaces/{namespace}/pods", query, patience)
    return (change for change in changes if change[0] != SYNCED)


def _container_state(pod: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """`waiting`, `running` or `terminated` of the only container; an empty one where it is in another state."""
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        if kind in container["state"]:
            return dict(container["state"][kind] or {}) or {"reason": kind}
    return {}


def _unscheduled(pod: Mapping[str, Any]) -> str:
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            text = str(condition.get("message") or condition.get("reason", ""))
            return text.partition(". no new claims")[0].partition(". preemption:")[
                0
            ]  # what did not help either
    return ""


def _last_event(connection: Connection, namespace: str, name: str) -> str:
    """FailedMount and the like are told in events only."""
    query = {"fieldSelector": f"involvedObject.name={name},type=Warning"}
    try:
        events = connection.get(f"/api/v1/namespaces/{namespace}/events", query)["items"]
    except ClusterError:
        return ""
    news = [each for each in events if each.get("reason") != "FailedScheduling"]  # a condition says that
    return f" ({news[-1].get('reason')}: {news[-1].get('message')})" if news else ""


@contextmanager
def ticking(progress: Callable[[str], None], state: str | Callable[[], str]) -> Iterator[None]:
    """Tells `state`, and for how long, after 5 s and then every 15 s, from a thread: a wait is no silence."""
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
