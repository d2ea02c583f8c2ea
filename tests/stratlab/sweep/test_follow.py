"""A release is followed to the end of its training and of its analysis, on a fake of the API server."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.job_end import read_job_end
from stratlab.cluster.workloads import APIS, Workload
from stratlab.sweep.follow import Outcome, follow_release
from stratlab.sweep.matrix import Release
from stratlab.sweep.planned_release import Planned
from tests.stratlab.cluster.conftest import api, connection
from tests.stratlab.cluster.fake_api import FakeApi

__all__ = ["api", "connection"]

JOBS = "/apis/kubeflow.org/v1/namespaces/lab/pytorchjobs"
ANALYSES = "/apis/batch/v1/namespaces/lab/jobs"
PODS = "/api/v1/namespaces/lab/pods"


def plan(name: str = "a", *, has_analysis: bool = True) -> Planned:
    from pathlib import Path

    release = Release(name, "ddp", {"strategy": "ddp"}, 1, {})
    return Planned(release, Path("ddp"), {}, "hash", Workload(APIS["pytorchjob"], {}), has_analysis)


def job(state: str, message: str = "") -> dict[str, Any]:
    conditions = [{"type": state, "status": "True", "message": message}] if state else []
    return {"metadata": {"name": "a"}, "status": {"conditions": conditions}}


def labelled(name: str, component: str, status: dict[str, Any], release: str = "a") -> dict[str, Any]:
    labels = {"app.kubernetes.io/instance": release, "app.kubernetes.io/component": component}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def analysis(condition: str = "", name: str = "a-analysis-1") -> dict[str, Any]:
    conditions = (
        [{"type": condition, "status": "True", "reason": "BackoffLimitExceeded"}] if condition else []
    )
    return labelled(name, "analysis", {"conditions": conditions})


class Following(threading.Thread):
    """`follow_release` in a thread; `shown` is what it said."""

    def __init__(self, connection: Connection, planned: Planned) -> None:
        super().__init__(daemon=True)
        self.connection, self.planned = connection, planned
        self.shown: list[str] = []
        self.heard = threading.Condition()
        self.outcome: Outcome | None = None
        self.start()

    def show(self, text: str) -> None:
        with self.heard:
            self.shown.append(text)
            self.heard.notify_all()

    def run(self) -> None:
        self.outcome = follow_release(self.connection, "lab", self.planned, self.show)

    def wait_for(self, text: str) -> None:
        with self.heard:
            assert self.heard.wait_for(lambda: text in self.shown, 10), self.shown

    def end(self) -> Outcome:
        self.join(10)
        assert self.outcome, self.shown
        return self.outcome


@pytest.fixture(autouse=True)
def collections(api: FakeApi) -> None:
    """With another release in the same namespace, whose end is not that of the one that is followed."""
    api.served |= {JOBS, ANALYSES, PODS}
    ends = {state: {"conditions": [{"type": state, "status": "True"}]} for state in ("Failed", "Complete")}
    api.put(JOBS, job("Failed", "of another release") | {"metadata": {"name": "b"}})
    for state, status in ends.items():
        api.put(ANALYSES, labelled(f"b-analysis-{state.lower()}", "analysis", status, "b"))
    waiting = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "no node"}],
    }
    api.put(PODS, labelled("b-worker-0", "training", waiting, "b"))
    api.put(PODS, labelled("a-waiter-1", "analysis", waiting))


def test_success_is_training_and_analysis(api: FakeApi, connection: Connection) -> None:
    api.put(JOBS, job(""))
    api.put(ANALYSES, analysis())
    following = Following(connection, plan())
    following.wait_for("PyTorchJob no status: no operator has looked at it")
    api.put(JOBS, job("Running"))
    following.wait_for("PyTorchJob Running")
    api.put(JOBS, job("Succeeded", "PyTorchJob a is successfully completed."))
    following.wait_for("analysis")
    api.put(ANALYSES, analysis("Complete"))
    assert following.end() == Outcome(True, "PyTorchJob Succeeded; analysis Complete")


def test_a_failed_training_is_told_with_its_reason_after_its_analysis(
    api: FakeApi, connection: Connection
) -> None:
    api.put(JOBS, job("Failed", "Worker replica(s) failed"))
    api.put(ANALYSES, analysis("Complete"))
    outcome = Following(connection, plan()).end()
    assert outcome == Outcome(False, "PyTorchJob Failed: Worker replica(s) failed; analysis Complete")


def test_a_failed_analysis_fails_the_release_unless_another_job_is_complete(
    api: FakeApi, connection: Connection
) -> None:
    api.put(JOBS, job("Succeeded"))
    api.put(ANALYSES, analysis("Failed"))
    outcome = Following(connection, plan()).end()
    assert outcome == Outcome(False, "PyTorchJob Succeeded; analysis Failed: BackoffLimitExceeded")
    api.put(ANALYSES, analysis("Complete", "a-analysis-2"))
    assert Following(connection, plan()).end().succeeded


def test_without_analysis_the_training_decides(api: FakeApi, connection: Connection) -> None:
    api.put(JOBS, job("Succeeded"))
    assert Following(connection, plan(has_analysis=False)).end() == Outcome(True, "PyTorchJob Succeeded")
    assert Following(connection, plan()).end() == Outcome(
        True, "PyTorchJob Succeeded; the analysis Job is gone"
    )


def test_a_resource_that_is_removed_is_a_failure(api: FakeApi, connection: Connection) -> None:
    gone = Outcome(False, "its PyTorchJob was removed before it had ended")
    assert Following(connection, plan(has_analysis=False)).end() == gone
    api.put(JOBS, job("Running"))
    following = Following(connection, plan(has_analysis=False))
    following.wait_for("PyTorchJob Running")
    api.delete(JOBS, "a")
    assert following.end() == gone


def test_an_analysis_that_nothing_will_start_has_failed(api: FakeApi, connection: Connection) -> None:
    api.put(JOBS, job("Succeeded"))
    api.put(ANALYSES, analysis() | {"spec": {"suspend": True}})
    failed = {"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}]}
    following = Following(connection, plan())
    following.wait_for("analysis")
    api.put(ANALYSES, labelled("a-waiter-1", "waiter", failed))
    assert following.end() == Outcome(False, "PyTorchJob Succeeded; analysis Failed: PodFailurePolicy")


def test_a_pod_that_waits_for_ever_is_shown(api: FakeApi, connection: Connection) -> None:
    api.put(JOBS, job("Created"))
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    unscheduled = {"type": "PodScheduled", "status": "False", "message": message}
    api.put(PODS, labelled("a-worker-0", "training", {"phase": "Pending", "conditions": [unscheduled]}))
    following = Following(connection, plan(has_analysis=False))
    following.wait_for(f"PyTorchJob Created; pod a-worker-0 waits for a node: {message}")
    running = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
    api.put(PODS, labelled("a-worker-0", "training", running))
    following.wait_for("PyTorchJob Created")
    api.put(JOBS, job("Succeeded"))
    assert following.end().succeeded


def test_a_cluster_that_refuses_is_an_error(api: FakeApi, connection: Connection) -> None:
    api.fault = lambda path, query: {"status": 403, "message": "no right to see"} if path == JOBS else None
    with pytest.raises(ClusterError, match="no right to see"):
        follow_release(connection, "lab", plan(), lambda text: None)


def test_end_of_a_job() -> None:
    assert read_job_end({}) is None and read_job_end(analysis()) is None
    assert read_job_end(analysis("Complete")) == ""
    assert (
        read_job_end({"status": {"conditions": [{"type": "Failed", "status": "True"}]}}) == "no reason given"
    )
    assert read_job_end({"status": {"conditions": [{"type": "Failed", "status": "False"}]}}) is None
