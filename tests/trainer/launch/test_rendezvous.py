"""Where ranks are, how long pods wait for each other, and who may write into a run directory."""

import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from stratlab_spec.exit_codes import PeerLost
from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import ConfigError
from tests.codes import find_codes, refuses
from trainer.launch import rendezvous as lease
from trainer.launch.rendezvous import (
    MARK,
    Lease,
    Peers,
    holds_rank_0,
    leave_mark,
    read_node_rank,
    read_rank,
    wait_for_host,
)


def build(tmp_path: Path, met: list[str] | None = None, wait_s: float = 1000.0) -> Peers:
    note = (met if met is not None else []).append
    return Peers(RunDirectory(tmp_path, "default", "try"), "pod-0", 2, wait_s, lambda: note("met"))


@pytest.mark.parametrize(
    ("endpoint", "given", "expected"),
    [
        ("PET_RDZV_ENDPOINT", "join_timeout=9,read_timeout=15", "read_timeout=15,join_timeout=1000"),
        ("PET_RDZV_ENDPOINT", "", "join_timeout=1000"),
        ("PET_MASTER_ADDR", "read_timeout=15", "read_timeout=15,timeout=1000"),
        ("", "", None),
    ],
)
def test_torch_waits_as_long(tmp_path, endpoint, given, expected):
    env = ({endpoint: "a:1"} if endpoint else {}) | ({"PET_RDZV_CONF": given} if given else {})
    build(tmp_path).set_environment(env)
    assert env.get("PET_RDZV_CONF") == expected


def test_the_first_deed_of_a_rank_says_that_all_are_there(tmp_path: Path) -> None:
    met: list[str] = []
    env: dict[str, str] = {}
    peers = build(tmp_path, met)
    peers.set_environment(env)
    peers.start()
    time.sleep(0.3)
    assert peers.met_at is None and met == []
    leave_mark(env)
    peers.stop()
    assert met == ["met"] and peers.met_at == pytest.approx(time.time(), abs=5)
    assert not Path(env[MARK]).parent.exists()
    leave_mark({})  # in a test, or without a launcher


def test_the_host_of_the_rendezvous_is_waited_for() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(PeerLost) as lost:
        wait_for_host(f"127.0.0.1:{port}", 0.5, poll_s=0.1)
    assert 0.5 <= time.monotonic() - began < 5
    assert find_codes(lost.value) == ["SL-host-absent"] and str(port) in str(lost.value)
    with pytest.raises(PeerLost):
        wait_for_host("no-such-pod.invalid:23456", 0.0, poll_s=0.1)
    with socket.socket() as late:
        late.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        late.bind(("127.0.0.1", port))
        timer = threading.Timer(0.5, late.listen)
        timer.start()
        wait_for_host(f"127.0.0.1:{port}", 20.0, poll_s=0.1)
        timer.join()


TORCHRUN = {"RANK": "0", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
RENDEZVOUS = {**TORCHRUN, "PET_RDZV_ENDPOINT": "ddp-worker-0:23456"}


@pytest.mark.parametrize(
    ("env", "pod", "rank"),
    [
        (RENDEZVOUS, "ddp-worker-0", 1),
        (RENDEZVOUS, "ddp-worker-10", 21),
        (TORCHRUN, "ddp-worker-2", 0),
        (RENDEZVOUS, "ddp-master-0", 0),
    ],
)
def test_the_rank_follows_the_pod_and_elsewhere_torch_s_holds(env, pod, rank):
    assert read_rank(env, pod) == rank
    assert rank or read_node_rank(env, pod) is None


@pytest.mark.parametrize(
    ("env", "pod", "nodes", "holds"),
    [
        (RENDEZVOUS, "ddp-worker-1", 2, False),
        ({"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "ddp-node-0-0.ddp"}, "ddp-node-0-1", 2, False),
        ({**RENDEZVOUS, "PET_NODE_RANK": "0"}, "laptop", 2, False),  # torch numbers them by their addresses
        ({}, "laptop", 1, True),
    ],
)
def test_where_the_first_rank_will_be(env, pod, nodes, holds):
    assert holds_rank_0(env, pod, nodes) is holds


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lease, "RENEW_S", 0.1)
    monkeypatch.setattr(lease, "WATCH_S", 1.0)


def test_a_second_start_is_refused_while_the_first_one_works_and_let_in_afterwards(tmp_path):
    folder = RunDirectory(tmp_path, "default", "try")
    first = Lease(folder, "one", "try-worker-0")
    first.take()
    with refuses(ConfigError, "SL-run-being-written", "try-worker-0"):
        Lease(folder, "two", "other").take()
    assert json.loads(folder.lease.read_text())["launcher"] == "one"
    first.release()
    assert not folder.lease.exists()
    Lease(folder, "two", "other").take()


def test_what_a_killed_start_has_left_keeps_nobody_out_however_new_it_looks(tmp_path):
    folder = RunDirectory(tmp_path, "default", "try")
    folder.path.mkdir(parents=True)
    folder.lease.write_text('{"launcher": "dead", "pod": "p", "host": "h", "beat": 3}')
    os.utime(folder.lease, (4e9, 4e9))
    mine = Lease(folder, "me", "p")
    mine.take()
    assert json.loads(folder.lease.read_text())["launcher"] == "me"
    mine.release()
