"""Accelerators that are looked for without torch, and torch's elastic launcher as it is interrupted."""

import os
import signal
import socket
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.agent.server.api import WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException

from stratlab_spec import exit_codes as failures
from stratlab_spec.exit_codes import AcceleratorsMissing
from tests.codes import refuses
from trainer.launch import torchrun as accelerators
from trainer.launch.stop import TO_RANKS, Stop
from trainer.launch.torchrun import _heard_between_looks, check, read_own_address

GPU = "nvidia.com/gpu"
NOT_THERE = [
    ("print(1, 13000)", {}, "13.0", "SL-too-few-devices", "1 visible"),
    ("import os; os.abort()", {}, "13.0", "SL-driver-failed", "-6"),
    ("import time; time.sleep(60)", {}, "13.0", "SL-driver-silent", ""),
    ("print(2, 12040)", {}, "13.0", "SL-driver-too-old", "12.4"),
    ("print(2, 13000)", {"STRATLAB_VARIANT": "cpu"}, "13.0", "SL-image-for-cpus", "VARIANT=cuda"),
    ("print(2, 13000)", {}, "", "SL-torch-no-cuda", ""),
]


@pytest.mark.parametrize(("probe", "env", "cuda", "code", "named"), NOT_THERE)
def test_what_is_not_there_is_refused(monkeypatch, probe, env, cuda, code, named):
    monkeypatch.setattr(accelerators, "PROBE", probe)
    monkeypatch.setattr(accelerators, "ANSWER_S", 0.3 if "sleep" in probe else 30.0)
    monkeypatch.setattr(accelerators, "find_torch_cuda", lambda: cuda)
    with refuses(AcceleratorsMissing, code, f"run.accelerator={GPU}", named) as refusal:
        check(GPU, 2, env)
    assert failures.exit_code(refusal.value) == 4


def test_enough_of_them_are_enough_and_of_another_vendor_torch_decides(monkeypatch):
    monkeypatch.setattr(accelerators, "PROBE", "print(2, 13000)")
    monkeypatch.setattr(accelerators, "find_torch_cuda", lambda: "13.0")
    check(GPU, 2, {"STRATLAB_VARIANT": "cuda"})
    monkeypatch.setattr(accelerators, "PROBE", "raise SystemExit('asked')")
    for asked in ("", "amd.com/gpu"):
        check(asked, 2, {"STRATLAB_VARIANT": "cpu"})


@pytest.fixture
def stop():
    before = signal.getsignal(signal.SIGTERM)
    heard = Stop()
    heard.interrupt = lambda: SignalException("stopped", TO_RANKS)
    signal.signal(signal.SIGTERM, heard._hear)
    yield heard
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("state", "raised"), [(WorkerState.HEALTHY, True), (WorkerState.FAILED, False)])
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
