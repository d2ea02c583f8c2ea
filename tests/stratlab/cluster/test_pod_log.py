from __future__ import annotations

import random
import threading
import time

import pytest

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.patience import Patience
from stratlab.cluster.pod_log import Cursor, follow_log, parse_stamp, read_log
from tests.stratlab.cluster.fake_api import FakeApi, Fault
from tests.stratlab.watch.objects import PODS, build_pod, ended

WAITING = {"waiting": {"reason": "CrashLoopBackOff"}}


def soon(seconds: float = 30.0) -> Patience:
    return Patience(deadline=time.monotonic() + seconds, pause_s=0.002)


@pytest.mark.parametrize(
    ("text", "stamp"),
    [
        ("1970-01-01T00:00:01Z", (1, 0)),
        ("1970-01-01T00:00:01.5Z", (1, 500_000_000)),
        ("1970-01-01T00:00:01.000000007Z", (1, 7)),
        ("1970-01-01T02:30:01.12+02:30", (1, 120_000_000)),
        ("1969-12-31T23:00:01-01:00", (1, 0)),
    ],
)
def test_stamps(text: str, stamp: tuple[int, int]) -> None:
    assert parse_stamp(text) == stamp


def test_lines_of_the_very_same_time_are_told_apart_by_their_number() -> None:
    lines = ["1970-01-01T00:00:01.1Z a", "1970-01-01T00:00:01.12Z b", "1970-01-01T00:00:01.12Z b"]
    cursor = Cursor()
    assert [cursor.take(line) for line in lines[:2]] == ["a", "b"]
    cursor.start_again()
    assert [cursor.take(line) for line in lines] == [None, None, "b"]
    assert cursor.second == "1970-01-01T00:00:01Z"


def test_what_the_kubelet_says_itself_is_no_line_of_the_log() -> None:
    cursor = Cursor()
    for said in (
        "unable to retrieve container logs for containerd://12ab",
        "",
        "2026",
        "1970-01-01T00:00:01",
    ):
        assert cursor.take(said) is None
    assert cursor.take("1970-01-01T00:00:01Z ") == ""


def test_the_log_as_it_is_now(api: FakeApi, connection: Connection) -> None:
    pod = api.put(PODS, build_pod(0))
    for text in ("one", "", "three"):
        api.log("demo-worker-0", text)
    assert list(read_log(connection, pod, "pytorch")) == ["one", "", "three"]
    with pytest.raises(ClusterError) as failure:
        list(read_log(connection, pod, "pytorch", previous=True))
    assert failure.value.status == 404
    api.log("demo-worker-0", "before", "pytorch previous")
    assert list(read_log(connection, pod, "pytorch", previous=True)) == ["before"]


def test_a_log_that_breaks_off_is_not_taken_for_whole(api: FakeApi, connection: Connection) -> None:
    pod = api.put(PODS, build_pod(0))
    api.log("demo-worker-0", "one")
    api.log("demo-worker-0", "two")
    api.fault = lambda path, query: {"cut": 1}
    with pytest.raises(ClusterError, match="the log broke off"):
        list(read_log(connection, pod, "pytorch"))


@pytest.mark.parametrize("seed", range(3))
def test_followed_over_broken_connections(api: FakeApi, connection: Connection, seed: int) -> None:
    chance = random.Random(seed)
    broken = []

    def fault(path: str, query: dict[str, str]) -> Fault | None:
        if path.endswith("/log"):
            broken.append(path)
            cut = {"cut": chance.randrange(400)}
            return chance.choice([cut, cut, cut, cut, {"status": 500}, {"drop": True}])
        return None

    api.log("demo-worker-0", "line 0")
    pod = api.put(PODS, build_pod(0))
    api.fault = fault

    def write() -> None:
        for number in range(1, 300):
            api.log("demo-worker-0", f"line {number}")
            time.sleep(chance.choice([0, 0, 0.004]))
        api.put(PODS, build_pod(0, "Succeeded", state=ended(0)))

    thread = threading.Thread(target=write)
    thread.start()
    lines = list(follow_log(connection, pod, "pytorch", soon()))
    thread.join()
    assert lines == [f"line {number}" for number in range(300)]
    assert len(broken) > 1


def test_an_ended_pods_log_is_read_to_its_end(api: FakeApi, connection: Connection) -> None:
    for number in range(5):
        api.log("demo-worker-0", str(number))
    pod = api.put(PODS, build_pod(0, "Succeeded", state=ended(0)))
    faults = iter([{"cut": 2}, {"status": 503}, {"cut": 4}])
    api.fault = lambda path, query: next(faults, None) if path.endswith("/log") else None
    assert list(follow_log(connection, pod, "pytorch", soon())) == list("01234")


def test_it_waits_for_the_container_to_start(api: FakeApi, connection: Connection) -> None:
    pod = api.put(PODS, build_pod(0, "Pending", state={"waiting": {"reason": "ContainerCreating"}}))

    def start() -> None:
        api.log("demo-worker-0", "hello")
        api.put(PODS, build_pod(0, "Succeeded", state=ended(0)))

    timer = threading.Timer(0.5, start)
    timer.start()
    assert list(follow_log(connection, pod, "pytorch", soon())) == ["hello"]
    assert sum(path.endswith("/log") for path, _, _ in api.requests) == 1, "no polling"


def test_it_goes_on_after_a_restart_in_the_pod(api: FakeApi, connection: Connection) -> None:
    api.log("demo-worker-0", "first")
    pod = api.put(PODS, build_pod(0))
    lines = follow_log(connection, pod, "pytorch", soon())
    assert next(lines) == "first"

    def restart() -> None:
        waits = build_pod(0, state=WAITING)
        waits["status"]["containerStatuses"][0]["restartCount"] = 1
        api.put(PODS, waits)
        time.sleep(0.4)
        api.logs[("demo-worker-0", "pytorch")] = []  # the log of the new container
        api.log("demo-worker-0", "second")
        api.put(PODS, build_pod(0, "Failed", state=ended(1)))

    thread = threading.Thread(target=restart)
    thread.start()
    assert list(lines) == ["second"]
    thread.join()


def test_a_pod_that_is_replaced_or_deleted_ends_it(api: FakeApi, connection: Connection) -> None:
    api.log("demo-worker-0", "old")
    pod = api.put(PODS, build_pod(0))
    lines = follow_log(connection, pod, "pytorch", soon())
    assert next(lines) == "old"
    api.delete(PODS, "demo-worker-0")
    assert list(lines) == []
    api.put(PODS, build_pod(0))
    assert list(follow_log(connection, pod, "pytorch", soon())) == [], "another pod of that name"
