"""Pods of our own: what they wait for, how they ended, and their logs, line by line."""

import random
import threading
import time
from types import SimpleNamespace

import pytest

from stratlab.cluster import ClusterError, pod_phase
from stratlab.cluster.connection import Patience
from stratlab.cluster.pod_phase import PodEnd, build_end, describe, follow_pod, read_end, why_hopeless
from stratlab.cluster.watching import Cursor, follow_log
from tests.codes import find_codes
from tests.stratlab.raised import raised
from tests.stratlab.watch.objects import PODS, build_pod, ended


def unscheduled(message):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"status": {"phase": "Pending", "conditions": [condition]}}


def pod(phase, **state):
    status = {"phase": phase, "containerStatuses": [{"state": state}] if state else []}
    return {"spec": {"nodeName": "n"}, "status": status}


def test_a_pod_is_waited_for_until_it_runs_and_not_longer(monkeypatch):
    def start():
        yield "ADDED", pod("Pending", waiting={"reason": "ContainerCreating"})
        yield "MODIFIED", pod("Running", running={})
        raise AssertionError("it runs, and is still waited for")

    def end():
        yield "ADDED", pod("Running", running={})
        yield "MODIFIED", pod("Failed", terminated={"exitCode": 3, "reason": "Error"})

    watches = iter((start(), end()))
    monkeypatch.setattr(pod_phase, "watch", lambda *_: next(watches))
    connection = SimpleNamespace(core="")
    followed = follow_pod(connection, "volume", lambda text: None)
    assert list(followed) == [None, PodEnd(3, "Error")]


@pytest.mark.parametrize(
    ("waiting", "limits_s"),
    [
        (unscheduled("0/3 nodes are available"), [60]),
        (pod("Pending", waiting={"reason": "ContainerCreating"}), [60, 600]),  # a node has it: a large image
    ],
)
def test_a_node_has_a_minute_and_an_image_ten(monkeypatch, waiting, limits_s):
    given = []

    def watch(connection, path, query, patience):
        given.append(patience.deadline - began)
        yield "ADDED", waiting

    def refuse(*_):
        raise ClusterError("no events")

    monkeypatch.setattr(pod_phase, "watch", watch)
    connection = SimpleNamespace(get=refuse, core="")
    began = time.monotonic()
    assert find_codes(raised(list, follow_pod(connection, "volume", lambda text: None))) == [
        "SL-pod-not-started"
    ] and given == pytest.approx(limits_s, abs=5)


def test_an_end_by_the_deadline_or_by_others_is_told():
    late = {"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active too long"}
    assert find_codes(raised(read_end, "p", iter([build_end({"status": late})]), 5)) == ["SL-pod-too-long"]
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "disk pressure"}
    assert build_end({"status": evicted}) == PodEnd(1, "Evicted: disk pressure")
    killed = pod("Failed", terminated={"exitCode": 137, "reason": "OOMKilled"})
    assert build_end(killed) == PodEnd(137, "OOMKilled")


POD = "demo-worker-0"


def soon():
    return Patience(deadline=time.monotonic() + 30, pause_s=0.002)


def test_lines_of_the_very_same_time_are_told_apart_by_their_number():
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


def test_followed_over_broken_connections(api, connection):
    chance = random.Random(0)
    broken = []

    def fault(path, query):
        if not path.endswith("/log"):
            return None
        broken.append(path)
        cut = {"cut": chance.randrange(200)}
        return chance.choice([cut, cut, cut, cut, {"status": 500}, {"drop": True}])

    api.log(POD, "line 0")
    pod = api.put(PODS, build_pod(0))
    api.fault = fault

    def write():
        for number in range(1, 150):
            api.log(POD, f"line {number}")
            time.sleep(chance.choice([0, 0, 0.004]))
        api.put(PODS, build_pod(0, "Succeeded", state=ended(0)))

    thread = threading.Thread(target=write)
    thread.start()
    lines = list(follow_log(connection, pod, "pytorch", soon()))
    thread.join()
    assert lines == [f"line {number}" for number in range(150)] and len(broken) > 1


@pytest.mark.parametrize(
    ("message", "is_hopeless"),
    [
        ('persistentvolumeclaim "results" not found', True),
        ("pod has unbound immediate PersistentVolumeClaims", False),
        ('persistentvolumeclaim "results" is being deleted', False),
        ('node "gpu-1" not found', False),  # it may come back
    ],
)
def test_only_a_claim_that_is_not_there_is_hopeless(message, is_hopeless):
    assert why_hopeless(unscheduled(message)) == (message if is_hopeless else "")
    assert message in describe(unscheduled(message))
