"""What a pod of our own waits for, how long it is waited for, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stratlab.cluster import ClusterError, pod_phase
from stratlab.cluster.pod_phase import (
    PodEnd,
    build_end,
    describe,
    follow_pod,
    has_started,
    read_end,
    why_hopeless,
)
from tests.codes import find_codes


def unscheduled(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"status": {"phase": "Pending", "conditions": [condition]}}


def pod(phase: str, **state: dict[str, Any]) -> dict[str, Any]:
    status = {"phase": phase, "containerStatuses": [{"state": state}] if state else []}
    return {"spec": {"nodeName": "n"}, "status": status}


@pytest.mark.parametrize(
    ("message", "is_hopeless"),
    [
        ('persistentvolumeclaim "results" not found', True),
        ("pod has unbound immediate PersistentVolumeClaims", False),
        ('node "gpu-1" not found', False),  # it may come back
    ],
)
def test_only_a_claim_that_is_not_there_is_hopeless(message: str, is_hopeless: bool) -> None:
    assert why_hopeless(unscheduled(message)) == (message if is_hopeless else "")
    assert message in describe(unscheduled(message))


def test_of_a_container_its_reason_tells() -> None:
    for reason, is_hopeless in (("ErrImageNeverPull", True), ("ContainerCreating", False)):
        waits = pod("Pending", waiting={"reason": reason, "message": "said"})
        assert why_hopeless(waits) == (f"{reason}: said" if is_hopeless else "")
        assert reason in describe(waits)


@pytest.mark.parametrize(
    ("phase", "state", "started"),
    [
        ("Pending", "waiting", False),
        ("Pending", "running", True),  # the phase follows later
        ("Running", "terminated", True),
        ("Failed", "", True),  # evicted: it will have no log
    ],
)
def test_started_is_what_runs_has_run_or_has_ended(phase: str, state: str, started: bool) -> None:
    assert has_started(pod(phase, **({state: {}} if state else {}))) is started


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
    with pytest.raises(ClusterError) as failure:
        list(follow_pod(SimpleNamespace(get=refuse), "lab", "volume", lambda text: None))  # type: ignore[arg-type]
    assert find_codes(failure.value) == ["SL-pod-not-started"]
    assert given == pytest.approx(limits_s, abs=5)


def test_an_end_by_the_deadline_or_by_others_is_told() -> None:
    late = {"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active too long"}
    with pytest.raises(ClusterError) as failure:
        read_end("p", iter([build_end({"status": late})]), 5)
    assert find_codes(failure.value) == ["SL-pod-too-long"]
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "disk pressure"}
    assert build_end({"status": evicted}) == PodEnd(1, "Evicted: disk pressure")
    killed = pod("Failed", terminated={"exitCode": 137, "reason": "OOMKilled"})
    assert build_end(killed) == PodEnd(137, "OOMKilled")
