"""A signal while torch's agent looks at its ranks: noted, and heard when it has looked."""

from __future__ import annotations

import os
import signal
import socket
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.agent.server.api import WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException

from trainer.launch.stop import TO_RANKS, Stop
from trainer.launch.torchrun import _heard_between_looks, read_own_address


@pytest.fixture
def stop():
    before = signal.getsignal(signal.SIGTERM)
    heard = Stop()
    heard.interrupt = lambda: SignalException("stopped", TO_RANKS)
    signal.signal(signal.SIGTERM, heard._hear)
    yield heard
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("state", "raised"),
    [(WorkerState.HEALTHY, True), (WorkerState.FAILED, False)],
)
def test_it_is_heard_behind_the_look_unless_ranks_have_failed_by_themselves(stop, monkeypatch, state, raised):
    looks = []

    def look(agent, group):
        os.kill(os.getpid(), signal.SIGTERM)
        looks.append(stop.asked_by)  # nothing was raised in here
        return SimpleNamespace(state=state)

    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", look)
    with _heard_between_looks(stop):
        if raised:
            with pytest.raises(SignalException):
                LocalElasticAgent._monitor_workers(None, None)
        else:
            assert LocalElasticAgent._monitor_workers(None, None).state == state
    assert "SIGTERM" in looks[0] and LocalElasticAgent._monitor_workers is look
    assert stop.interrupt


@pytest.mark.parametrize(
    ("resolved", "address"), [("10.2.3.4", "10.2.3.4"), ("127.0.1.1", None), (None, None)]
)
def test_a_pod_hands_out_its_address_and_never_a_loopback(monkeypatch, resolved, address):
    def look_up(name: str) -> str:
        if resolved is None:
            raise OSError("unknown name")
        return resolved

    monkeypatch.setattr(socket, "gethostbyname", look_up)
    assert read_own_address() == address
