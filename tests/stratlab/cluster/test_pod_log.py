"""The log of a container, line by line, once each, whatever happens to connection and container."""

from __future__ import annotations

import random
import threading
import time

import pytest

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.patience import Patience
from stratlab.cluster.pod_log import Cursor, follow_log, parse_stamp, read_log
from tests.codes import find_codes
from tests.stratlab.cluster.fake_api import FakeApi, Fault
from tests.stratlab.watch.objects import PODS, build_pod, ended

POD = "demo-worker-0"


def soon() -> Patience:
    return Patience(deadline=time.monotonic() + 30, pause_s=0.002)


def test_stamps() -> None:
    assert parse_stamp("1970-01-01T00:00:01Z") == (1, 0)
    assert parse_stamp("1970-01-01T00:00:01.000000007Z") == (1, 7)
    assert parse_stamp("1970-01-01T02:30:01.12+02:30") == (1, 120_000_000)
    assert parse_stamp("1969-12-31T23:00:01-01:00") == (1, 0)


def test_lines_of_the_very_same_time_are_told_apart_by_their_number() -> None:
    lines = ["1970-01-01T00:00:01.1Z a", "1970-01-01T00:00:01.12Z b", "1970-01-01T00:00:01.12Z b"]
    cursor = Cursor()
    assert [cursor.take(line) for line in lines[:2]] == ["a", "b"]
    cursor.start_again()
    assert [cursor.take(line) for line in lines] == [None, None, "b"]
    assert cursor.second == "1970-01-01T00:00:01Z"
    for of_the_kubelet in (
        "unable to retrieve container logs for containerd://12ab",
        "",
        "1970-01-01T00:00:01",
    ):
        assert cursor.take(of_the_kubelet) is None
    assert cursor.take("1970-01-01T00:00:02Z ") == ""


def test_the_log_as_it_is_now(api: FakeApi, connection: Connection) -> None:
    pod = api.put(PODS, build_pod(0))
    for text in ("one", "", "three"):
        api.log(POD, text)
    assert list(read_log(connection, pod, "pytorch")) == ["one", "", "three"]
    with pytest.raises(ClusterError) as failure:
        list(read_log(connection, pod, "pytorch", previous=True))
    assert failure.value.status == 404
    api.log(POD, "before", "pytorch previous")
    assert list(read_log(connection, pod, "pytorch", previous=True)) == ["before"]
    api.fault = lambda path, query: {"cut": 1}
    with pytest.raises(ClusterError) as failure:
        list(read_log(connection, pod, "pytorch"))
    assert find_codes(failure.value) == ["SL-log-broke-off"], "it is not taken for whole"


def test_followed_over_broken_connections(api: FakeApi, connection: Connection) -> None:
    chance = random.Random(0)
    broken = []

    def fault(path: str, query: dict[str, str]) -> Fault | None:
        if not path.endswith("/log"):
            return None
        broken.append(path)
        cut = {"cut": chance.randrange(200)}
        return chance.choice([cut, cut, cut, cut, {"status": 500}, {"drop": True}])

    api.log(POD, "line 0")
    pod = api.put(PODS, build_pod(0))
    api.fault = fault

    def write() -> None:
        for number in range(1, 150):
            api.log(POD, f"line {number}")
            time.sleep(chance.choice([0, 0, 0.004]))
        api.put(PODS, build_pod(0, "Succeeded", state=ended(0)))

    thread = threading.Thread(target=write)
    thread.start()
    lines = list(follow_log(connection, pod, "pytorch", soon()))
    thread.join()
    assert lines == [f"line {number}" for number in range(150)] and len(broken) > 1


def test_it_waits_for_the_container_to_start(api: FakeApi, connection: Connection) -> None:
    pod = api.put(PODS, build_pod(0, "Pending", state={"waiting": {"reason": "ContainerCreating"}}))

    def start() -> None:
        api.log(POD, "hello")
        api.put(PODS, build_pod(0, "Succeeded", state=ended(0)))

    threading.Timer(0.5, start).start()
    assert list(follow_log(connection, pod, "pytorch", soon())) == ["hello"]
    assert sum(path.endswith("/log") for path, _, _ in api.requests) == 1, "no polling"


def test_it_goes_on_after_a_restart_in_the_pod(api: FakeApi, connection: Connection) -> None:
    api.log(POD, "first")
    pod = api.put(PODS, build_pod(0))
    lines = follow_log(connection, pod, "pytorch", soon())
    assert next(lines) == "first"

    def restart() -> None:
        waits = build_pod(0, state={"waiting": {"reason": "CrashLoopBackOff"}})
        waits["status"]["containerStatuses"][0]["restartCount"] = 1
        api.put(PODS, waits)
        time.sleep(0.4)
        api.logs[(POD, "pytorch")] = []  # the log of the new container
        api.log(POD, "second")
        api.put(PODS, build_pod(0, "Failed", state=ended(1)))

    thread = threading.Thread(target=restart)
    thread.start()
    assert list(lines) == ["second"]
    thread.join()


def test_a_pod_that_is_replaced_or_deleted_ends_it(api: FakeApi, connection: Connection) -> None:
    api.log(POD, "old")
    pod = api.put(PODS, build_pod(0))
    lines = follow_log(connection, pod, "pytorch", soon())
    assert next(lines) == "old"
    api.delete(PODS, POD)
    assert list(lines) == []
    api.put(PODS, build_pod(0))
    assert list(follow_log(connection, pod, "pytorch", soon())) == [], "another pod of that name"
