from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stratlab.cluster.connection import Connection
from stratlab.cluster.workloads import APIS
from stratlab.wait import Outcome, wait_for_run
from stratlab.wait import resource as resource_module
from stratlab.wait.resource import Resource, parse_resource
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.cluster.real_cluster import RESULT, RealCluster, fail_with

JOBS = "/apis/kubeflow.org/v1/namespaces/lab/pytorchjobs"
EVENTS = "/api/v1/namespaces/lab/events"
QUIET_S = 0.6


def job(*conditions: str, name: str = "demo") -> dict[str, Any]:
    listed = [{"type": kind, "status": "True", "message": f"it is {kind}."} for kind in conditions]
    return {"metadata": {"name": name}, "status": {"conditions": listed} if listed else None}


def write_attempt(run_dir: Path, code: int | None) -> None:
    lines = [{"attempt": 1, "event": "started"}]
    if code is not None:
        lines.append({"attempt": 1, "event": "ended", "exit_code": code})
    run_dir.mkdir(exist_ok=True)
    (run_dir / "attempts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


class Waiting:
    """`wait_for_run` in a thread."""

    def __init__(self, run_dir: Path, resource: Resource, deadline_s: float = 20.0) -> None:
        self.said: list[str] = []
        self.outcome: Outcome | None = None
        self._arguments = (run_dir, resource, deadline_s)
        self.thread = threading.Thread(target=self._wait, daemon=True)
        self.thread.start()

    def _wait(self) -> None:
        run_dir, resource, deadline_s = self._arguments
        resource.start()
        self.outcome = wait_for_run(
            run_dir,
            resource=resource,
            deadline_s=deadline_s,
            poll_s=0.05,
            quiet_s=QUIET_S,
            say=self.said.append,
        )
        resource.stop()

    def ends_within(self, seconds: float) -> Outcome:
        self.thread.join(seconds)
        assert self.outcome, f"still waiting; said: {self.said}"
        return self.outcome

    def goes_on_for(self, seconds: float) -> None:
        self.thread.join(seconds)
        assert self.thread.is_alive(), f"ended: {self.outcome}; said: {self.said}"


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
    assert outcome.ended
    assert outcome.sentence.startswith(f"PyTorchJob demo: {state}, it is {state}.; ")
    assert run.said[:2] == [f"{run_dir}: attempt 1 is running", "PyTorchJob demo: Running"]


def test_it_was_over_before_the_waiter_came(api: FakeApi, connection: Connection, run_dir: Path) -> None:
    api.put(JOBS, job("Failed"))
    with waiting(run_dir, connection) as run:
        assert "no such folder yet" in run.ends_within(3).sentence


def test_the_files_end_it_first(api: FakeApi, connection: Connection, run_dir: Path) -> None:
    api.put(JOBS, job("Running"))
    with waiting(run_dir, connection) as run:
        run.goes_on_for(0.3)
        write_attempt(run_dir, 0)
        assert run.ends_within(1).sentence == f"{run_dir}: attempt 1 ended with exit code 0"


def test_files_still_being_written_are_given_time(
    api: FakeApi, connection: Connection, run_dir: Path
) -> None:
    write_attempt(run_dir, None)
    api.put(JOBS, job("Failed"))
    with waiting(run_dir, connection) as run:
        for number in range(10):
            (run_dir / "metrics.jsonl").write_text("x" * number)
            run.goes_on_for(0.1)
        run.ends_within(2)


@pytest.mark.parametrize("state", ["Running", "Restarting", "Suspended", "Created"])
def test_a_code_that_is_tried_again_is_no_end_while_the_resource_lives(
    api: FakeApi, connection: Connection, run_dir: Path, state: str
) -> None:
    write_attempt(run_dir, 143)
    api.put(JOBS, job("Created", state))
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
        outcome = run.ends_within(4)
    assert outcome.ended and "there is no resource of its name" in outcome.sentence
    assert "PyTorchJob demo: not there yet" in run.said


def test_before_it_is_created_the_waiter_waits(api: FakeApi, connection: Connection, run_dir: Path) -> None:
    api.served.add(JOBS)
    with waiting(run_dir, connection) as run:
        run.goes_on_for(2 * QUIET_S)
        api.put(JOBS, job())
        run.goes_on_for(0.5)
        api.put(JOBS, job("Succeeded"))
        run.ends_within(3)


def test_deleted_is_ended(api: FakeApi, connection: Connection, run_dir: Path) -> None:
    api.put(JOBS, job("Running"))
    with waiting(run_dir, connection) as run:
        run.goes_on_for(0.5)
        api.delete(JOBS, "demo")
        api.put(JOBS, job("Running"))  # the next release of that name is another run
        assert run.ends_within(3).sentence.startswith("PyTorchJob demo was deleted; ")


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        (["5"], "Warning FailedCreatePod: violates PodSecurity (5 times)"),
        ([], "no operator reconciles kubeflow.org/v1 PyTorchJob"),
        (None, "This account may not read Events: kubectl describe pytorchjobs.kubeflow.org demo -n lab"),
    ],
)
def test_no_status_is_explained_once(
    api: FakeApi,
    connection: Connection,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    events: list[str] | None,
    sentence: str,
) -> None:
    monkeypatch.setattr(resource_module, "NO_STATUS_S", 0.5)
    uid = api.put(JOBS, job())["metadata"]["uid"]
    api.served.add(EVENTS)
    for count in events or []:
        event = {"type": "Warning", "reason": "FailedCreatePod", "message": "violates PodSecurity"}
        involved = {"involvedObject": {"uid": uid}, "count": int(count), "metadata": {"name": "e"}}
        api.put(EVENTS, event | involved)
        api.put(
            EVENTS,
            event | {"involvedObject": {"uid": "of another"}, "metadata": {"name": "f"}, "message": "no"},
        )
        normal = {"type": "Normal", "reason": "SuccessfulCreatePod", "message": "no trouble"}
        api.put(EVENTS, normal | {"involvedObject": {"uid": uid}, "metadata": {"name": "g"}})
    if events is None:
        api.fault = lambda path, query: {"status": 403} if path == EVENTS else None
    with waiting(run_dir, connection, deadline_s=1.5) as run:
        outcome = run.ends_within(4)
    assert not outcome.ended
    told = "\n".join(run.said)
    assert told.count("has no status after 60 s") == 1 and told.count(sentence) == 1
    assert "Warning FailedCreatePod: no" not in told and "no trouble" not in told


def test_without_the_right_to_look_the_files_decide(
    api: FakeApi, connection: Connection, run_dir: Path
) -> None:
    api.fault = lambda path, query: {"status": 403, "message": "pytorchjobs is forbidden"}
    write_attempt(run_dir, 143)
    with waiting(run_dir, connection) as run:
        assert "nothing came after it" in run.ends_within(4).sentence
    assert "pytorchjobs is forbidden; waiting for the files alone" in run.said


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
        run.ends_within(8)


@pytest.mark.parametrize("text", ["demo", "pytorchjob/", "job/demo", "/demo"])
def test_a_resource_is_api_and_name(text: str) -> None:
    with pytest.raises(ValueError, match="must be API/NAME, API one of pytorchjob, mpijob-v1"):
        parse_resource(text)
    assert parse_resource("trainjob/demo") == (APIS["trainjob"], "demo")


@pytest.mark.cluster
class TestOnACluster:
    def wait(self, cluster: RealCluster, run_dir: Path, name: str) -> Waiting:
        resource = Resource(cluster.connection, APIS["pytorchjob"], cluster.namespace, name)
        return Waiting(run_dir, resource, deadline_s=90)

    def test_success(self, cluster: RealCluster, run_dir: Path) -> None:
        run = self.wait(cluster, run_dir, "good")
        cluster.submit("good", "sleep 2", workers=2)
        assert run.ends_within(60).sentence.startswith("PyTorchJob good: Succeeded")
        assert "PyTorchJob good: Running" in run.said

    def test_failure(self, cluster: RealCluster, run_dir: Path) -> None:
        run = self.wait(cluster, run_dir, "bad")
        cluster.submit("bad", fail_with(RESULT))
        assert run.ends_within(60).sentence.startswith("PyTorchJob bad: Failed")

    def test_restarts_suspension_and_deletion(self, cluster: RealCluster, run_dir: Path) -> None:
        write_attempt(run_dir, 143)
        cluster.submit("stop", "trap 'exit 143' TERM; sleep 600 & wait", suspended=True)
        run = self.wait(cluster, run_dir, "stop")
        run.goes_on_for(2)
        assert "PyTorchJob stop: Suspended" in run.said
        cluster.suspend("stop", False)
        cluster.wait_until(lambda: "PyTorchJob stop: Running" in run.said)
        cluster.suspend("stop", True)
        cluster.wait_until(lambda: run.said.count("PyTorchJob stop: Suspended") == 2)
        run.goes_on_for(2)
        deleted = time.monotonic()
        cluster.delete("stop")
        assert run.ends_within(10).sentence.startswith("PyTorchJob stop was deleted")
        assert time.monotonic() - deleted < 10

    def test_never_a_status(
        self, cluster: RealCluster, run_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(resource_module, "NO_STATUS_S", 4.0)
        run = self.wait(cluster, run_dir, "loose")
        cluster.submit("loose", "true", restricted=False)
        cluster.wait_until(lambda: any("its Events:" in text for text in run.said))
        assert any("violates PodSecurity" in text for text in run.said)
        cluster.delete("loose")
        run.ends_within(10)
