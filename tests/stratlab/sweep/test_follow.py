"""A release is followed to the end of its training and of its analysis; watches are stand-ins with given changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from stratlab.cluster.watching import ADDED, DELETED, MODIFIED, SYNCED
from stratlab.cluster.workloads import read_job_end
from stratlab.sweep import helm_release as module
from stratlab.sweep.helm_release import ReleaseEnd, follow_release
from tests.stratlab.cluster.answering import Answering
from tests.stratlab.sweep.stand_ins import plan

Changes = Iterable[tuple[str, dict[str, Any]]]
THERE: Changes = [(SYNCED, {})]
CONNECTION: Any = Answering()
INSTANCE = "app.kubernetes.io/instance=a"
NO_NODE = {"type": "PodScheduled", "status": "False", "message": "1 Insufficient nvidia.com/gpu."}


def job(state: str, message: str = "") -> dict[str, Any]:
    conditions = [{"type": state, "status": "True", "message": message}] if state else []
    return {"metadata": {"name": "a"}, "status": {"conditions": conditions}}


def labelled(name: str, component: str, status: dict[str, Any], **spec: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": component}
    return {"metadata": {"name": name, "labels": labels}, "status": status, "spec": spec}


def analysis(
    condition: str = "", number: int = 1, component: str = "analysis", **spec: Any
) -> dict[str, Any]:
    conditions = [{"type": condition, "status": "True", "reason": "PodFailurePolicy"}] if condition else []
    return labelled(f"a-{component}-{number}", component, {"conditions": conditions}, **spec)


class Cluster:
    """`asked`: the query of each collection; `shown`: what the release was said to do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changes: dict[str, Changes] = {}
        self.asked: dict[str, dict[str, str]] = {}
        self.shown: list[str] = []
        monkeypatch.setattr(module, "watch", self.watch)

    def watch(self, connection: Any, path: str, query: dict[str, str], patience: Any) -> Iterator[Any]:
        assert "/namespaces/lab/" in path
        collection = path.rpartition("/")[2]
        self.asked[collection] = query
        yield from self.changes.get(collection, ())

    def follow(self, training: Changes, jobs: Changes | None = None, pods: Changes = ()) -> ReleaseEnd:
        self.changes = {"pytorchjobs": training, "jobs": jobs or (), "pods": pods}
        planned = plan("a", has_analysis=jobs is not None)
        return follow_release(CONNECTION, planned, self.shown.append)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_success_is_training_and_analysis(cluster: Cluster) -> None:
    done = (MODIFIED, job("Succeeded", "PyTorchJob a is successfully completed."))
    training = [(ADDED, job("")), *THERE, (MODIFIED, job("Running")), done]
    jobs = [(ADDED, analysis()), *THERE, (MODIFIED, analysis("Complete"))]
    assert cluster.follow(training, jobs) == ReleaseEnd(True, "PyTorchJob Succeeded; analysis Complete")
    assert [text for text in cluster.shown if text][1:] == [
        "PyTorchJob Running",
        "PyTorchJob Succeeded",
        "analysis",
    ]
    assert cluster.asked["pytorchjobs"] == {"fieldSelector": "metadata.name=a"}
    assert cluster.asked["jobs"] == {"labelSelector": INSTANCE}


@pytest.mark.parametrize(
    ("training", "jobs", "succeeded", "words"),
    [
        (job("Failed", "why"), [(ADDED, analysis("Complete"))], False, "Failed: why; analysis Complete"),
        (job("Succeeded"), [(ADDED, analysis("Failed")), *THERE], False, "analysis Failed: PodFailurePolicy"),
        (
            job("Succeeded"),
            [(ADDED, analysis("Failed")), (ADDED, analysis("Complete", 2)), *THERE],
            True,
            "analysis Complete",
        ),
        (job("Succeeded"), THERE, True, "analysis"),  # an ended Job goes by itself
        (job("Succeeded"), None, True, "PyTorchJob Succeeded"),
        (
            job("Succeeded"),  # nothing will start the analysis
            [
                (ADDED, analysis(suspend=True)),
                *THERE,
                (ADDED, analysis("Failed", component="waiter")),
            ],
            False,
            "analysis Failed: PodFailurePolicy",
        ),
    ],
)
def test_a_failed_analysis_fails_the_release_unless_another_job_is_complete(
    cluster: Cluster, training: dict[str, Any], jobs: Changes | None, succeeded: bool, words: str
) -> None:
    outcome = cluster.follow([(ADDED, training)], jobs)
    assert outcome.succeeded is succeeded and words in outcome.sentence


def test_a_resource_that_is_removed_is_a_failure(cluster: Cluster) -> None:
    assert not cluster.follow(THERE).succeeded
    assert not cluster.follow([(ADDED, job("Running")), *THERE, (DELETED, job(""))]).succeeded


def test_a_pod_that_waits_for_ever_is_shown(cluster: Cluster) -> None:
    waits = labelled("a-worker-0", "training", {"phase": "Pending", "conditions": [NO_NODE]})
    runs = labelled("a-worker-0", "training", {"containerStatuses": [{"state": {"running": {}}}]})
    told = threading.Event()

    def pods() -> Iterator[tuple[str, dict[str, Any]]]:
        yield MODIFIED, waits
        told.set()
        yield MODIFIED, runs

    def training(wait: Callable[[float], bool]) -> Iterator[tuple[str, dict[str, Any]]]:
        yield ADDED, job("Created")
        assert wait(10)
        yield MODIFIED, job("Succeeded")

    assert cluster.follow(training(told.wait), pods=pods()).succeeded
    (waiting,) = [text for text in cluster.shown if NO_NODE["message"] in text]
    assert "pod a-worker-0 " in waiting
    assert cluster.asked["pods"] == {"labelSelector": f"{INSTANCE},app.kubernetes.io/component=training"}


def test_end_of_a_job() -> None:
    assert read_job_end({}) is None and read_job_end(analysis()) is None
    assert read_job_end(analysis("Complete")) == ""
    assert read_job_end({"status": {"conditions": [{"type": "Failed", "status": "True"}]}})
    assert read_job_end({"status": {"conditions": [{"type": "Failed", "status": "False"}]}}) is None
