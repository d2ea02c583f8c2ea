"""The suspended Job of the analysis is started when the run has ended, and held to that until it has ended too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from stratlab import wait as module
from stratlab.cluster import ClusterError
from stratlab.wait import QUEUE, start_job
from tests.codes import find_codes
from tests.stratlab.raised import raised

COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
Change = dict[str, dict[str, Any]]


def job(*, suspend: bool = True, labels: Any = None, status: Any = None) -> dict[str, Any]:
    return {"metadata": {"labels": labels}, "spec": {"suspend": suspend}, "status": status}


def start(
    monkeypatch: pytest.MonkeyPatch, *seen: Any, queue: str = "", refuses: bool = False
) -> tuple[list[Change], list[str]]:
    """(what was changed, what was said) while the Job was seen like that, one look after the other."""
    looks, changes, said = iter(seen), list[Change](), list[str]()

    def get(path: str) -> dict[str, Any]:
        assert path == "/apis/batch/v1/namespaces/lab/jobs/analysis"
        if isinstance(found := next(looks), Exception):
            raise found
        return dict(found)

    def patch(name: str, namespace: str, change: Change, **options: Any) -> None:
        if refuses:
            raise ApiException(403, "Forbidden")
        assert (name, namespace) == ("analysis", "lab")
        changes.append(change)

    monkeypatch.setattr(module, "BatchV1Api", lambda client: SimpleNamespace(patch_namespaced_job=patch))
    connection: Any = SimpleNamespace(
        get=get, client=None, namespace="lab", jobs="/apis/batch/v1/namespaces/lab/jobs"
    )
    start_job(connection, "analysis", queue, said.append, 0.0)
    return changes, said


def test_it_is_started_and_started_again_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a tool suspends it that holds a cluster to its manifests; a server that is away is asked again."""
    away = ClusterError("no answer")
    looks = (job(), job(suspend=False), away, job(), job(status=COMPLETE))
    changes, said = start(monkeypatch, *looks)
    assert changes == [{"spec": {"suspend": False}}] * 2 and len(said) == 3


def test_a_queue_starts_it_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = ClusterError("not found", 404)
    looks = (job(), job(labels={QUEUE: "cpus"}), gone)
    changes, said = start(monkeypatch, *looks, queue="cpus")
    assert changes == [{"metadata": {"labels": {QUEUE: "cpus"}}}], "Kueue ends that it is suspended"
    assert len(said) == 1, "a job that goes away is no failure"


def test_an_account_without_the_right_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = raised(start, monkeypatch, job(), refuses=True)
    assert find_codes(failure) == ["SL-job-not-started"] and "Forbidden" in str(failure)
    failure = raised(start, monkeypatch, ClusterError("not found", 404))
    assert find_codes(failure) == ["SL-job-not-started"]
