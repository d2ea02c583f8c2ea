"""A watched run from its first to its last change, against the fake API."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import Any

import pytest

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.workloads import find_workload
from stratlab.watch import session, sources
from stratlab.watch.appearance import await_workload
from stratlab.watch.farewell import build_ending
from stratlab.watch.lines import Lines
from stratlab.watch.picture import Picture
from stratlab.watch.session import watch_run
from tests.codes import find_codes
from tests.stratlab.cluster.fake_api import FakeApi, Fault
from tests.stratlab.raised import raised
from tests.stratlab.watch.objects import (
    ANALYSES,
    EVENTS,
    PODS,
    RUNS,
    build_analysis,
    build_event,
    build_pod,
    build_run,
    ended,
    labels,
)

LINE = "step {}/600  loss 0.4321  812 samples/s  78.9 ms/step  about 38 s left"


@pytest.fixture(autouse=True)
def all_served(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.served |= {PODS, EVENTS, ANALYSES, RUNS}
    monkeypatch.setattr(session, "TICK_S", 0.05)
    monkeypatch.setattr(session, "LAST_LINES_S", 0.5)
    monkeypatch.setattr(session, "CULPRIT_S", 0.7)
    monkeypatch.setattr(session, "NO_STATUS_S", 0.3)
    monkeypatch.setattr("stratlab.watch.lines.PROGRESS_EVERY_S", 0.0)


class Watching:
    """`watch_run` in a thread."""

    def __init__(self, connection: Connection, *, analysis: bool = True) -> None:
        workload = find_workload(connection, "lab", "demo")
        assert workload
        self.said: list[str] = []
        self.failure: BaseException | None = None
        self.ended: tuple[int, Picture] | None = None
        self._arguments = (connection, workload, analysis)
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        connection, workload, analysis = self._arguments
        picture = Picture(workload)
        try:
            code = watch_run(connection, picture, Lines(self.said.append), analysis=analysis)
            self.ended = (code, picture)
        except ClusterError as failure:
            self.failure = failure

    def says(self, text: str, seconds: float = 5.0) -> None:
        end = time.monotonic() + seconds
        while not any(text in line for line in self.said):
            assert time.monotonic() < end, f"{text!r} not in {self.said}"
            time.sleep(0.02)

    def end(self, seconds: float = 5.0) -> tuple[int, Picture]:
        self.thread.join(seconds)
        assert self.ended, f"still going: {self.said}, {self.failure}"
        return self.ended


def test_a_run_that_succeeds(api: FakeApi, connection: Connection) -> None:
    api.put(RUNS, build_run())
    job = api.put(ANALYSES, build_analysis())
    api.put(PODS, build_pod(0, "Pending", state={"waiting": {"reason": "ContainerCreating"}}))
    api.fault = lambda path, query: {"status": 403, "message": f"no {path}"} if path == EVENTS else None
    run = Watching(connection)
    run.says("kubeflow.org/v1 PyTorchJob")  # it has no status: no operator looks after it
    run.says(f"no {EVENTS}")
    run.says("pod demo-worker-0: Pending")
    run.says("analysis: pending")
    api.log("demo-worker-0", "demo: rank 0 of 4")
    api.log("demo-worker-1", LINE.format(7))  # nobody asks for the log of this pod
    api.put(PODS, build_pod(1))
    api.put(PODS, build_pod(0))
    api.put(RUNS, build_run("Created", "Running"))
    for step in (100, 200):
        api.log("demo-worker-0", LINE.format(step))
        run.says(f"step {step}/600")
    api.log("demo-worker-0", LINE.format(600))
    api.put(PODS, build_pod(0, "Succeeded", state=ended(0, reason="Completed")))
    api.put(RUNS, build_run("Created", "Succeeded"))
    run.says("PyTorchJob demo: Succeeded")
    time.sleep(0.5)
    assert run.ended is None, "the analysis has not ended"
    api.put(ANALYSES, build_analysis("Complete") | {"metadata": job["metadata"]})
    code, picture = run.end()
    assert code == 0 and picture.progress and picture.progress.step == 600
    run.says("analysis: Complete")
    assert not any("step 7/" in line for line in run.said)
    assert json.loads(json.dumps(build_ending(picture, code)))["analysis"] == "Complete"


def test_a_run_that_fails_ends_with_the_trainers_code(api: FakeApi, connection: Connection) -> None:
    message = json.dumps({"exit_code": 10, "reason": "accelerator out of memory", "message": "rank 2: boom"})
    api.put(RUNS, build_run("Running"))
    api.put(PODS, build_pod(0))
    api.put(PODS, build_pod(1))
    run = Watching(connection)
    run.says("pod demo-worker-1: Running")
    api.put(RUNS, build_run("Failed"))  # the operator may be faster than the pods' news
    time.sleep(0.2)
    api.put(PODS, build_pod(0, "Failed", state=ended(134)))
    time.sleep(0.2)
    api.put(PODS, build_pod(1, "Failed", state=ended(10, message)))
    code, picture = run.end()
    assert code == 10
    ending = build_ending(picture, code)
    assert (ending["state"], ending["exit_code"], ending["analysis"]) == ("Failed", 10, None)
    assert (ending["culprit"]["pod"], ending["culprit"]["message"]) == ("demo-worker-1", "rank 2: boom")


def test_events_of_this_run_and_of_no_other(api: FakeApi, connection: Connection) -> None:
    uid = api.put(RUNS, build_run("Created"))["metadata"]["uid"]
    api.put(EVENTS, build_event("another", "FailedCreatePod", "not mine", "demo2"))
    api.put(EVENTS, build_event(uid, "FailedCreatePod", "quota\nexceeded", count=3))
    api.put(EVENTS, build_event(uid, "SuccessfulCreatePod", "not mine: no warning") | {"type": "Normal"})
    api.put(RUNS, build_run("Failed", name="demo2"))
    api.put(PODS, build_pod(0, "Failed", run="demo2", state=ended(12)))
    of_another = {"name": "demo2-analysis", "labels": labels("demo2", "analysis")}
    api.put(ANALYSES, build_analysis("Failed") | {"metadata": of_another})
    run = Watching(connection)
    run.says("demo: Warning FailedCreatePod: quota exceeded")
    api.put(EVENTS, build_event(uid, "FailedCreatePod", "quota\nexceeded", count=4))
    pod = api.put(PODS, build_pod(0, "Pending", state={"waiting": {"reason": "ContainerCreating"}}))
    api.put(EVENTS, build_event(pod["metadata"]["uid"], "FailedMount", "no volume", "demo-worker-0"))
    run.says("demo-worker-0: Warning FailedMount: no volume")
    api.put(RUNS, build_run("Failed", name="demo2") | {"spec": {}})
    api.put(RUNS, build_run("Succeeded"))
    code, picture = run.end()
    assert (code, picture.state, picture.analysis, len(picture.training_pods)) == (0, "Succeeded", None, 1)
    assert sum("quota" in line for line in run.said) == 1, "that it happened again is no news"
    assert not any("not mine" in line or "demo2" in line for line in run.said)


@pytest.mark.parametrize("collection", [PODS, RUNS])
def test_neither_pods_nor_the_run_may_be_forbidden(
    api: FakeApi, connection: Connection, collection: str
) -> None:
    api.put(RUNS, build_run("Running"))
    api.fault = lambda path, query: {"status": 403, "message": "not for you"} if path == collection else None
    run = Watching(connection)
    run.thread.join(5)
    assert str(run.failure) == "not for you"


def test_broken_connections_change_nothing(api: FakeApi, connection: Connection) -> None:
    chance = random.Random(0)

    def fault(path: str, query: dict[str, str]) -> Fault | None:
        if path.endswith("/log"):  # a whole second is read again: fewer lines than that would never do
            return {"cut": chance.randrange(20)}
        if "watch" in query:
            return {"cut": chance.randrange(3), "half": chance.random() < 0.3}
        return {"status": 503} if chance.random() < 0.1 else None

    api.put(RUNS, build_run("Running"))
    api.log("demo-worker-0", LINE.format(1))
    api.put(PODS, build_pod(0))
    run = Watching(connection)
    api.fault = fault
    for step in range(2, 12):
        api.log("demo-worker-0", LINE.format(step))
        run.says(f"step {step}/600", 30)
    api.put(RUNS, build_run("Succeeded"))
    run.end(30)
    steps = [line.split("/")[0] for line in run.said if line.startswith("step ")]
    assert len(steps) == len(set(steps)), "told twice"


def test_what_a_thread_dies_of_ends_the_watch(
    api: FakeApi, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for ever for what that thread was to bring."""

    def break_down(*arguments: Any) -> Any:
        yield from ()
        raise AttributeError("a bug")

    monkeypatch.setattr(sources, "watch", break_down)
    api.put(RUNS, build_run())
    workload = find_workload(connection, "lab", "demo")
    assert workload
    with pytest.raises(AttributeError):
        watch_run(connection, Picture(workload), Lines(print))


def test_a_release_is_awaited_and_one_that_never_comes_is_told_with_the_others(
    api: FakeApi, connection: Connection
) -> None:
    threading.Timer(0.3, api.put, [RUNS, build_run("Created")]).start()
    assert await_workload(connection, "lab", "demo", lambda text: None, appear_s=10).name == "demo"
    failure = raised(await_workload, connection, "lab", "none", lambda text: None, appear_s=0.1)
    assert find_codes(failure) == ["SL-release-not-found"] and "demo (Created)" in str(failure)
