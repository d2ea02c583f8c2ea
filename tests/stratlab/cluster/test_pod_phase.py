from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stratlab.cluster import ClusterError, pod_phase
from stratlab.cluster.pod_phase import PodEnd, describe, follow_pod, has_started, why_hopeless


def unscheduled(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"status": {"phase": "Pending", "conditions": [condition]}}


@pytest.mark.parametrize(
    ("message", "is_hopeless"),
    [
        ('persistentvolumeclaim "results" not found', True),
        ("pod has unbound immediate PersistentVolumeClaims", False),
        ('persistentvolumeclaim "results" is being deleted', False),
        ("0/3 nodes are available: 3 Insufficient cpu", False),
        ('node "gpu-1" not found', False),  # it may come back
    ],
)
def test_only_a_claim_that_is_not_there_is_hopeless(message: str, is_hopeless: bool) -> None:
    pod = unscheduled(message)
    assert why_hopeless(pod) == (message if is_hopeless else "")
    assert describe(pod) == f"waits for a node: {message}"


@pytest.mark.parametrize(
    ("reason", "is_hopeless"), [("ErrImageNeverPull", True), ("ContainerCreating", False)]
)
def test_of_a_container_its_reason_tells(reason: str, is_hopeless: bool) -> None:
    waiting = {"state": {"waiting": {"reason": reason, "message": "said"}}}
    pod = {"status": {"containerStatuses": [waiting]}}
    assert why_hopeless(pod) == (f"{reason}: said" if is_hopeless else "")
    assert describe(pod) == f"waits: {reason}"


@pytest.mark.parametrize(
    ("phase", "state", "started"),
    [
        ("Pending", None, False),
        ("Pending", "waiting", False),
        ("Pending", "running", True),  # the phase follows later
        ("Running", "running", True),
        ("Running", "terminated", True),
        ("Succeeded", "terminated", True),
        ("Failed", None, True),  # evicted: it will have no log
    ],
)
def test_started_is_what_runs_has_run_or_has_ended(phase: str, state: str | None, started: bool) -> None:
    statuses = [{"state": {state: {}}}] if state else []
    assert has_started({"status": {"phase": phase, "containerStatuses": statuses}}) is started
    assert not has_started({})


def pod(phase: str, **state: dict[str, Any]) -> dict[str, Any]:
    status = {"phase": phase, "containerStatuses": [{"state": state}]}
    return {"spec": {"nodeName": "n"}, "status": status}


def test_a_pod_is_waited_for_until_it_runs_and_not_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    def start() -> Iterator[tuple[str, dict[str, Any]]]:
        yield "ADDED", pod("Pending", waiting={"reason": "ContainerCreating"})
        yield "MODIFIED", pod("Running", running={})
        raise AssertionError("it runs, and is still waited for")

    def end() -> Iterator[tuple[str, dict[str, Any]]]:
        yield "ADDED", pod("Running", running={})
        yield "MODIFIED", pod("Failed", terminated={"exitCode": 3, "reason": "Error"})

    watches = iter((start(), end()))
    monkeypatch.setattr(pod_phase, "watch", lambda *_: next(watches))
    followed = follow_pod(None, "lab", "volume", lambda text: None)  # type: ignore[arg-type]
    assert list(followed) == [None, PodEnd(3, "Error")]


@pytest.mark.parametrize(
    ("waiting", "limits_s"),
    [
        (unscheduled("0/3 nodes are available"), [60]),
        (pod("Pending", waiting={"reason": "ContainerCreating"}), [60, 600]),  # a node has it: a large image
    ],
)
def test_a_node_has_a_minute_and_an_image_ten(
    monkeypatch: pytest.MonkeyPatch, waiting: dict[str, Any], limits_s: list[int]
) -> None:
    given: list[float] = []

    def watch(connection: Any, path: str, query: Any, patience: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        given.append(patience.deadline - began)
        yield "ADDED", waiting

    def refuse(*_: Any) -> None:
        raise ClusterError("no events")

    monkeypatch.setattr(pod_phase, "watch", watch)
    began = time.monotonic()
    with pytest.raises(ClusterError, match="pod volume has not started after 0 s, it waits"):
        list(follow_pod(SimpleNamespace(get=refuse), "lab", "volume", lambda text: None))  # type: ignore[arg-type]
    assert given == pytest.approx(limits_s, abs=5)
