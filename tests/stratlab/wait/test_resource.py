"""The resource beside the files: its end is the run's, and whatever happens to the watch, the waiter does not hang."""

from functools import partial
from types import SimpleNamespace

import pytest

from stratlab import wait as module
from stratlab.cluster import ClusterError
from stratlab.cluster.watching import ADDED, DELETED, MODIFIED, SYNCED
from stratlab.cluster.workloads import APIS
from stratlab.wait import Resource, wait_for_run
from tests.stratlab.wait.waiting import write_attempt

QUIET_S = 0.3


def job(*conditions):
    listed = [{"type": kind, "status": "True", "message": f"it is {kind}."} for kind in conditions]
    metadata = {"name": "demo", "namespace": "lab", "uid": "u"}
    return {"metadata": metadata, "status": {"conditions": listed} if listed else None}


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(module, "OTHER_SILENCE_S", 0.1)
    monkeypatch.setattr(module, "SILENCE_S", {"Succeeded": 0.2})


class Waiting:
    """`wait_for_run` beside a watch that has brought `changes`."""

    def __init__(self, changes, get=None):
        self.said = []
        connection = SimpleNamespace(get=get, namespace="lab", core="/api/v1/namespaces/lab")
        self.resource = Resource(connection, APIS["pytorchjob"], "demo")
        for change in changes:
            self.resource._changes.put(partial(self.resource._take, *change))

    def end(self, run_dir, deadline_s=5.0):
        times = {"deadline_s": deadline_s, "poll_s": 0.02, "quiet_s": QUIET_S}
        return wait_for_run(run_dir, resource=self.resource, say=self.said.append, **times)


@pytest.mark.parametrize(("state", "code"), [("Succeeded", 0), ("Failed", None)])
def test_the_end_of_the_resource_is_the_end(tmp_path, state, code):
    write_attempt(tmp_path, None)
    waiting = Waiting([(ADDED, job("Created", "Running")), (SYNCED, {}), (MODIFIED, job("Created", state))])
    outcome = waiting.end(tmp_path)
    assert (outcome.ended, outcome.exit_code) == (True, code) and f"it is {state}." in outcome.sentence
    assert len(waiting.said) == 3, "what the resource did, and the files"


def test_deleted_is_ended(tmp_path):
    changes = [(ADDED, job("Running")), (SYNCED, {}), (DELETED, job()), (ADDED, job("Running"))]
    assert Waiting(changes).end(tmp_path).ended


def test_a_code_that_is_tried_again_is_no_end_while_the_resource_lives(tmp_path):
    write_attempt(tmp_path, 143)
    assert not Waiting([(ADDED, job("Restarting"))]).end(tmp_path, deadline_s=3 * QUIET_S).ended


def test_where_no_such_resource_is_nobody_tries_again(tmp_path):
    write_attempt(tmp_path / "run", None)
    assert Waiting([(SYNCED, {})]).end(tmp_path / "run").ended
    assert not Waiting([(SYNCED, {})]).end(tmp_path / "not there", deadline_s=3 * QUIET_S).ended


def test_without_the_right_to_look_the_files_decide(tmp_path, monkeypatch):
    def watch(connection, path, query, patience):
        assert path == "/apis/kubeflow.org/v1/namespaces/lab/pytorchjobs"
        assert query == {"fieldSelector": "metadata.name=demo"}
        yield from ()
        raise ClusterError("pytorchjobs is forbidden", 403)

    monkeypatch.setattr(module, "watch", watch)
    write_attempt(tmp_path, 143)
    waiting = Waiting([])
    waiting.resource.start()
    assert waiting.end(tmp_path).ended and any("pytorchjobs is forbidden" in text for text in waiting.said)


def test_what_the_thread_dies_of_ends_the_waiter(tmp_path, monkeypatch):
    def break_down(*arguments):
        yield from ()
        raise AttributeError("a bug")

    monkeypatch.setattr(module, "watch", break_down)
    waiting = Waiting([])
    waiting.resource.start()
    with pytest.raises(AttributeError):
        waiting.end(tmp_path)
