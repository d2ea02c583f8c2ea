"""The launcher's watch over ranks that are written by hand: two pods, a machine that stood still, ranks that go on."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from stratlab_spec.run_directory import RunDirectory
from tests.codes import find_codes
from trainer.hang_detection.heartbeat import (
    ALIVE_NS,
    ASKED,
    MOVED_NS,
    STEP,
    TOLD,
    WAITING_NS,
    Pulse,
    answer_file,
    open_pulse,
)
from trainer.launch.watchdog import ENOUGH_S, Watchdog

TIMEOUT_S = 10.0
LATE_S = 9.0
"""Longer than the time-out but for its margin."""
WAIT = [["/x/torch/distributed/distributed_c10d.py", 1, "all_reduce"]]
SLEEP = [["/app/trainer/data/batches.py", 88, "build_batch"]]


def watch(results: Path, pod: str = "pod-0", nodes: int = 1, processes: int = 2) -> Watchdog:
    folder = RunDirectory(results, "default", "try")
    made = Watchdog(folder, pod, f"node-of-{pod}", nodes, processes, TIMEOUT_S, 2000)
    made._awake -= 1000 * TIMEOUT_S  # it has been there for long
    return made


class Rank:
    """A pulse whose witness is a thread of this test."""

    def __init__(self, watchdog: Watchdog, local: int, rank: int, stack: list) -> None:
        env: dict[str, str] = {}
        watchdog.set_environment(env)
        self.pulse: Pulse = open_pulse(env, local, rank)
        self.stack = stack
        self.pulse.words[STEP] = 7

    def stand_still(self, since_s: float, waits: bool) -> None:
        then = time.monotonic_ns() - int(since_s * 1e9)
        self.pulse.words[MOVED_NS], self.pulse.words[WAITING_NS] = then, then if waits else 0

    def answer(self) -> None:
        words, path = self.pulse.words, self.pulse.path
        assert path is not None
        words[ALIVE_NS] = time.monotonic_ns()
        if words[ASKED] != words[TOLD]:
            told = {"phase": "data", "pending": [], "groups": {}, "stack": self.stack}
            answer_file(path).write_text(json.dumps(told))
            words[TOLD] = words[ASKED]


@pytest.fixture
def witnesses(monkeypatch):
    """Answers for all ranks in the list; a signal to this process would show nothing of a rank."""
    sent, ranks, over = [], list[Rank](), threading.Event()
    monkeypatch.setattr("trainer.launch.watchdog.os.kill", lambda *given: sent.append(given))

    def answer() -> None:
        while not over.wait(0.02):
            for rank in ranks:
                rank.answer()

    thread = threading.Thread(target=answer)
    thread.start()
    yield ranks, sent
    over.set()
    thread.join()


@pytest.fixture
def pod(tmp_path, witnesses) -> tuple[Watchdog, list[Rank], list]:
    """The watchdog of a pod of two ranks, of which the first waits and the second sleeps."""
    ranks, sent = witnesses
    watchdog = watch(tmp_path)
    ranks += [Rank(watchdog, 0, 0, WAIT), Rank(watchdog, 1, 1, SLEEP)]
    return watchdog, ranks, sent


def test_a_rank_that_waits_too_long_raises_the_alarm(tmp_path, pod):
    watchdog, ranks, sent = pod
    for rank in ranks:
        rank.stand_still(100 * TIMEOUT_S, waits=False)
    watchdog._look()
    assert watchdog.verdict is None, "who computes for long and waits for nobody does not hang"
    ranks[0].stand_still(LATE_S - 2.0, waits=True)
    ranks[1].stand_still(LATE_S, waits=False)
    watchdog._look()
    assert watchdog.verdict is None and not (tmp_path / "default").exists(), "7 s of 10 s are no alarm"
    ranks[0].stand_still(LATE_S, waits=True)
    watchdog._look()
    assert watchdog.verdict and watchdog.verdict.ranks == [1]
    sentence = watchdog.verdict.sentence
    assert find_codes(sentence) == ["SL-rank-absent"] and "node-of-pod-0" in sentence
    assert "step 7 " in sentence
    assert (os.getpid(), signal.SIGUSR2) in sent
    written = json.loads((tmp_path / "default/try/hangs/pod-0.json").read_text())
    assert written["verdict"]["ranks"] == [1] and len(written["ranks"]) == 2


def test_an_alarm_is_taken_back_when_the_ranks_go_on(tmp_path, pod):
    watchdog, ranks, _ = pod
    ranks[0].stand_still(7.7, waits=True)
    ranks[1].stand_still(7.7, waits=False)
    watchdog._look()
    assert watchdog.verdict
    watchdog._alarm = time.monotonic() - 8.5  # asking took its time; nothing of it counts here
    ranks[0].stand_still(0.0, waits=False)
    watchdog._look()
    assert watchdog.verdict is None and not list((tmp_path / "default/try/hangs").glob("*.json"))
    ranks[0].stand_still(LATE_S, waits=True)
    watchdog._look()
    assert watchdog.verdict
    ranks[0].pulse.words[STEP] += 1  # a further step takes it back, however late
    watchdog._look()
    assert watchdog.verdict is None


def test_a_pod_is_ended_whose_ranks_stay_after_the_time_out(pod):
    watchdog, ranks, sent = pod
    ranks[0].stand_still(LATE_S, waits=True)
    watchdog._look()
    watchdog._look()
    assert not watchdog.ended and watchdog._alarm is not None
    watchdog._alarm -= ENOUGH_S + 2.0
    watchdog._look()
    assert watchdog.ended and (os.getpid(), signal.SIGKILL) in sent


def test_a_machine_that_stood_still_is_no_hang(pod):
    watchdog, ranks, _ = pod
    watchdog._looked -= 1000.0
    for rank in ranks:
        rank.stand_still(1000.0, waits=True)
    watchdog._look()
    assert watchdog.verdict is None
    watchdog._awake -= LATE_S
    watchdog._look()
    assert watchdog.verdict, "and from then on it is one again"


def test_each_pod_finds_the_same_rank(tmp_path, witnesses):
    ranks, _ = witnesses
    pods = [watch(tmp_path, f"pod-{i}", nodes=2, processes=1) for i in range(2)]
    ranks += [Rank(pods[0], 0, 0, WAIT), Rank(pods[1], 0, 1, SLEEP)]
    ranks[0].stand_still(LATE_S, waits=True)
    ranks[1].stand_still(LATE_S, waits=False)
    for pod in pods:
        pod.start()
    until = time.monotonic() + 20
    while time.monotonic() < until and not all(pod.verdict for pod in pods):
        time.sleep(0.1)
    for pod in pods:
        pod.stop()
    found = [pod.verdict for pod in pods]
    assert found[0] and found[0] == found[1]
    assert found[0].ranks == [1] and "node-of-pod-1" in found[0].sentence
