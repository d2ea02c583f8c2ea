"""A release is followed to the end of its training and of its analysis, on a fake of the API server."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stratlab.cluster.connection import Connection
from stratlab.cluster.job_end import read_job_end
from stratlab.sweep.follow import Outcome, follow_release
from stratlab.sweep.planned_release import Planned
from tests.stratlab.cluster.conftest import api, connection
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.sweep.stand_ins import plan

__all__ = ["api", "connection"]

JOBS = "/apis/kubeflow.org/v1/namespaces/lab/pytorchjobs"
ANALYSES = "/apis/batch/v1/namespaces/lab/jobs"
PODS = "/api/v1/namespaces/lab/pods"
NO_NODE = {"type": "PodScheduled", "status": "False", "message": "1 Insufficient nvidia.com/gpu."}
WAITING = {"phase": "Pending", "conditions": [NO_NODE]}


def job(state: str, message: str = "", name: str = "a") -> dict[str, Any]:
    conditions = [{"type": state, "status": "True", "message": message}] if state else []
    return {"metadata": {"name": name}, "status": {"conditions": conditions}}


def labelled(name: str, component: str, status: dict[str, Any]) -> dict[str, Any]:
    labels = {"app.kubernetes.io/instance": name[0], "app.kubernetes.io/component": component}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def analysis(condition: str = "", name: str = "a-analysis-1", component: str = "analysis") -> dict[str, Any]:
    conditions = [{"type": condition, "status": "True", "reason": "PodFailurePolicy"}] if condition else []
    return labelled(name, component, {"conditions": conditions})


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

    def wait_for(self, *words: str) -> None:
        with self.heard:
            assert self.heard.wait_for(lambda: all(word in str(self.shown[-1:]) for word in words), 10)

    def end(self) -> tuple[bool, str]:
        self.join(10)
        assert self.outcome, self.shown
        return self.outcome.succeeded, self.outcome.sentence


@pytest.fixture(autouse=True)
def collections(api: FakeApi) -> None:
    """With another release in the same namespace, whose end is not that of the one that is followed."""
    api.served |= {JOBS, ANALYSES, PODS}
    api.put(JOBS, job("Failed", "of another release", "b"))
    for state in ("Failed", "Complete"):
        api.put(ANALYSES, analysis(state, f"b-analysis-{state.lower()}"))
    api.put(PODS, labelled("b-worker-0", "training", WAITING))
    api.put(PODS, labelled("a-waiter-1", "analysis", WAITING))


def test_success_is_training_and_analysis(api: FakeApi, connection: Connection) -> None:
    api.put(JOBS, job(""))
    api.put(ANALYSES, analysis())
    following = Following(connection, plan("a"))
    following.wait_for("PyTorchJob")
    api.put(JOBS, job("Running"))
    following.wait_for("PyTorchJob Running")
    api.put(JOBS, job("Succeeded", "PyTorchJob a is successfully completed."))
    following.wait_for("analysis")
    api.put(ANALYSES, analysis("Complete"))
    assert following.end() == (True, "PyTorchJob Succeeded; analysis Complete")


@pytest.mark.parametrize(
    ("training", "analyses", "end"),
    [
        ("Failed", [analysis("Complete")], (False, "PyTorchJob Failed: why; analysis Complete")),
        (
            "Succeeded",
            [analysis("Failed")],
            (False, "PyTorchJob Succeeded; analysis Failed: PodFailurePolicy"),
        ),
        (
            "Succeeded",
            [analysis("Failed"), analysis("Complete", "a-analysis-2")],
            (True, "PyTorchJob Succeeded; analysis Complete"),
        ),
        ("Succeeded", [], (True, "PyTorchJob Succeeded; the analysis Job is gone")),
        ("Succeeded", None, (True, "PyTorchJob Succeeded")),
    ],
)
def test_a_failed_analysis_fails_the_release_unless_another_job_is_complete(
    api: FakeApi,
    connection: Connection,
    training: str,
    analyses: list[dict[str, Any]] | None,
    end: tuple[bool, str],
) -> None:
    api.put(JOBS, job(training, "why"))
    for each in analyses or []:
        api.put(ANALYSES, each)
    assert Following(connection, plan("a", has_analysis=analyses is not None)).end() == end


def test_an_analysis_that_nothing_will_start_has_failed(api: FakeApi, connection: Connection) -> None:
    api.put(JOBS, job("Succeeded"))
    api.put(ANALYSES, analysis() | {"spec": {"suspend": True}})
    following = Following(connection, plan("a"))
    following.wait_for("analysis")
    api.put(ANALYSES, analysis("Failed", "a-waiter-1", "waiter"))
    assert following.end() == (False, "PyTorchJob Succeeded; analysis Failed: PodFailurePolicy")


def test_a_pod_that_waits_for_ever_is_shown(api: FakeApi, connection: Connection) -> None:
    api.put(JOBS, job("Created"))
    api.put(PODS, labelled("a-worker-0", "training", WAITING))
    following = Following(connection, plan("a", has_analysis=False))
    following.wait_for("PyTorchJob Created; pod a-worker-0 ", NO_NODE["message"])
    running = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
    api.put(PODS, labelled("a-worker-0", "training", running))
    with following.heard:
        assert following.heard.wait_for(lambda: following.shown[-1] == "PyTorchJob Created", 10)
    assert not any("waiter" in text for text in following.shown)
    api.delete(JOBS, "a")
    assert following.end()[0] is False, "it was removed before it had ended"


def test_end_of_a_job() -> None:
    assert read_job_end({}) is None and read_job_end(analysis()) is None
    assert read_job_end(analysis("Complete")) == ""
    assert read_job_end({"status": {"conditions": [{"type": "Failed", "status": "True"}]}})
    assert read_job_end({"status": {"conditions": [{"type": "Failed", "status": "False"}]}}) is None
