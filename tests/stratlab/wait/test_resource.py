"""The resource beside the files: its end is the run's, and whatever happens to the watch, the waiter does not hang."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stratlab.cluster.connection import Connection
from stratlab.cluster.workloads import APIS
from stratlab.wait import resource as resource_module
from stratlab.wait.ended import wait_for_run
from stratlab.wait.resource import Resource
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.wait.waiting import QUIET_S, Waiting, write_attempt
from tests.stratlab.watch.objects import build_event

JOBS = "/apis/kubeflow.org/v1/namespaces/lab/pytorchjobs"
EVENTS = "/api/v1/namespaces/lab/events"


def job(*conditions: str, name: str = "demo") -> dict[str, Any]:
    listed = [{"type": kind, "status": "True", "message": f"it is {kind}."} for kind in conditions]
    return {"metadata": {"name": name}, "status": {"conditions": listed} if listed else None}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "demo"


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_module, "OTHER_SILENCE_S", 0.3)
    monkeypatch.setattr(resource_module, "SILENCE_S", {"Succeeded": 0.6})


@contextmanager
def waiting(
    run_dir: Path, connection: Connection, namespace: str = "lab", **options: Any
) -> Iterator[Waiting]:
    started = Waiting(run_dir, Resource(connection, APIS["pytorchjob"], namespace, "demo"), **options)
    yield started
    started.thread.join(30)


@pytest.mark.parametrize("state", ["Succeeded", "Failed"])
def test_the_end_of_the_resource_is_the_end(
    api: FakeApi, connection: Connection, run_dir: Path, state: str
) -> None:
    write_attempt(run_dir, None)
    api.put(JOBS, job("Created", "Running"))
    with waiting(run_dir, connection) as run:
        run.goes_on_for(2 * QUIET_S)
        api.put(JOBS, job("Created", state))
        outcome = run.ends_within(3)
    assert outcome.ended and outcome.exit_code == (0 if state == "Succeeded" else None)
    assert f"it is {state}." in outcome.sentence


def test_the_files_end_it_first(api: FakeApi, connection: Connection, run_dir: Path) -> None:
    api.put(JOBS, job("Running"))
    with waiting(run_dir, connection) as run:
        run.goes_on_for(0.3)
        write_attempt(run_dir, 0)
        assert run.ends_within(1).exit_code == 0


def test_a_code_that_is_tried_again_is_no_end_while_the_resource_lives(
    api: FakeApi, connection: Connection, run_dir: Path
) -> None:
    write_attempt(run_dir, 143)
    api.put(JOBS, job("Created", "Restarting"))
    with waiting(run_dir, connection) as run:
        run.goes_on_for(3 * QUIET_S)
        api.put(JOBS, job("Failed"))
        run.ends_within(3)


def test_where_no_such_resource_is_nobody_tries_again(
    api: FakeApi, connection: Connection, run_dir: Path
) -> None:
    api.served.add(JOBS)
    write_attempt(run_dir, None)
    with waiting(run_dir, connection) as run:
        assert run.ends_within(4).ended


def test_deleted_is_ended(api: FakeApi, connection: Connection, run_dir: Path) -> None:
    api.put(JOBS, job("Running"))
    with waiting(run_dir, connection) as run:
        run.goes_on_for(0.5)
        api.delete(JOBS, "demo")
        api.put(JOBS, job("Running"))  # the next release of that name is another run
        assert run.ends_within(3).ended


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        (True, "Warning FailedCreatePod: violates PodSecurity (5 times)"),
        (False, "kubeflow.org/v1 PyTorchJob"),
        (None, "kubectl describe pytorchjobs.kubeflow.org demo -n lab"),
    ],
)
def test_no_status_is_explained_once(
    api: FakeApi,
    connection: Connection,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    events: bool | None,
    sentence: str,
) -> None:
    monkeypatch.setattr(resource_module, "NO_STATUS_S", 0.5)
    uid = api.put(JOBS, job())["metadata"]["uid"]
    api.served.add(EVENTS)
    if events:
        for about, kind, message in ((uid, "Warning", "violates PodSecurity"), ("b", "Warning", "of b")):
            api.put(EVENTS, build_event(about, "FailedCreatePod", message, about, 5) | {"type": kind})
        api.put(EVENTS, build_event(uid, "SuccessfulCreatePod", "no trouble") | {"type": "Normal"})
    if events is None:
        api.fault = lambda path, query: {"status": 403} if path == EVENTS else None
    with waiting(run_dir, connection, deadline_s=1.5) as run:
        outcome = run.ends_within(4)
    assert not outcome.ended
    told = "\n".join(run.said)
    assert told.count(sentence) == 1 and "of b" not in told and "no trouble" not in told


def test_without_the_right_to_look_the_files_decide(
    api: FakeApi, connection: Connection, run_dir: Path
) -> None:
    api.fault = lambda path, query: {"status": 403, "message": "pytorchjobs is forbidden"}
    write_attempt(run_dir, 143)
    with waiting(run_dir, connection) as run:
        assert run.ends_within(4).ended
    assert any("pytorchjobs is forbidden" in text for text in run.said)


def test_an_api_server_that_is_away_is_no_end(api: FakeApi, connection: Connection, run_dir: Path) -> None:
    write_attempt(run_dir, 134)
    api.put(JOBS, job("Running"))
    with waiting(run_dir, connection) as run:
        run.goes_on_for(0.5)
        api.fault = lambda path, query: {"drop": True}
        api.closing = True
        run.goes_on_for(3 * QUIET_S)
        api.put(JOBS, job("Failed"))
        api.closing, api.fault = False, lambda path, query: None
        run.ends_within(20)


def test_what_the_thread_dies_of_ends_the_waiter(
    connection: Connection, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*arguments: Any) -> Iterator[Any]:
        yield from ()
        raise AttributeError("a bug")

    monkeypatch.setattr(resource_module, "watch", break_down)
    resource = Resource(connection, APIS["pytorchjob"], "lab", "demo")
    resource.start()
    with pytest.raises(AttributeError):
        wait_for_run(run_dir, resource=resource, deadline_s=10, poll_s=0.05)
