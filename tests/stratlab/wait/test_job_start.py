"""The suspended Job of the analysis is started when the run has ended, and held to that until it has ended too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from stratlab.cluster.connection import Connection
from stratlab.wait.job_start import QUEUE, start_job
from tests.codes import find_codes
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.raised import raised

JOBS = "/apis/batch/v1/namespaces/lab/jobs"


def job(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "demo-analysis-1"}, "spec": {"suspend": True}, "status": status}


def complete(api: FakeApi) -> None:
    held = api.collections[JOBS]["demo-analysis-1"]
    api.put(JOBS, held | {"status": {"conditions": [{"type": "Complete", "status": "True"}]}})


class Starting(threading.Thread):
    """`start_job` in a thread."""

    def __init__(self, connection: Connection, queue: str = "") -> None:
        super().__init__(daemon=True)
        self.connection, self.queue = connection, queue
        self.said: list[str] = []
        self.start()

    def run(self) -> None:
        start_job(self.connection, "lab", "demo-analysis-1", self.queue, self.said.append, 0.02)

    def ends(self) -> bool:
        self.join(5)
        return not self.is_alive()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_is_started_and_started_again_until_it_has_ended(api: FakeApi, connection: Connection) -> None:
    api.put(JOBS, job())
    starting = Starting(connection)
    wait_until(lambda: not api.collections[JOBS]["demo-analysis-1"]["spec"]["suspend"])
    api.put(JOBS, job())  # as a tool does that holds a cluster to its manifests
    wait_until(lambda: not api.collections[JOBS]["demo-analysis-1"]["spec"]["suspend"])
    complete(api)
    assert starting.ends() and len(starting.said) == 2


def test_a_queue_starts_it_instead(api: FakeApi, connection: Connection) -> None:
    api.put(JOBS, job())
    starting = Starting(connection, "cpus")
    wait_until(lambda: api.collections[JOBS]["demo-analysis-1"]["metadata"].get("labels") == {QUEUE: "cpus"})
    assert api.collections[JOBS]["demo-analysis-1"]["spec"]["suspend"] is True, "Kueue ends that"
    api.delete(JOBS, "demo-analysis-1")
    assert starting.ends() and len(starting.said) == 1, "a job that goes away is no failure"


def test_an_account_without_the_right_is_refused(api: FakeApi, connection: Connection) -> None:
    api.put(JOBS, job())
    denied = {"status": 403, "message": "jobs.batch is forbidden"}
    api.fault = lambda path, query: denied if path.startswith("PATCH") else None
    failure = raised(start_job, connection, "lab", "demo-analysis-1", "", lambda sentence: None, 0.02)
    assert find_codes(failure) == ["SL-job-not-started"] and "forbidden" in str(failure)
