"""Waiting for the other pods, without torch."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from stratlab_spec.exit_codes import PeerLost
from stratlab_spec.run_directory import RunDirectory
from tests.codes import find_codes
from trainer.launch.rendezvous import MARK, Peers, leave_mark, wait_for_host


def build(tmp_path: Path, met: list[str] | None = None, wait_s: float = 1000.0) -> Peers:
    note = (met if met is not None else []).append
    return Peers(RunDirectory(tmp_path, "default", "try"), "pod-0", 2, wait_s, lambda: note("met"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"PET_RDZV_ENDPOINT": "a:1", "PET_RDZV_CONF": "join_timeout=9,read_timeout=15"},
            "read_timeout=15,join_timeout=1000",
        ),
        ({"PET_RDZV_ENDPOINT": "a:1"}, "join_timeout=1000"),
        ({"PET_MASTER_ADDR": "a", "PET_RDZV_CONF": "read_timeout=15"}, "read_timeout=15,timeout=1000"),
        ({}, None),
    ],
)
def test_torch_waits_as_long(tmp_path: Path, given: dict[str, str], expected: str | None) -> None:
    env = dict(given)
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
