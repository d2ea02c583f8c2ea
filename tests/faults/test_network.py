"""F29: packets between two ranks are dropped, in network namespaces of their own, joined by a pair of interfaces."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.pods import open_pods, train_undisturbed

TIMEOUT_S, NOTICED_S = 20, 30
STEPS = {"TRAINER_STEPS": "150", "TRAINER_COLLECTIVE_TIMEOUT_S": str(TIMEOUT_S)}
NAMES = tuple(f"stratlab-{os.getpid()}-{index}" for index in (0, 1))
ADDRESSES = ("10.99.7.1", "10.99.7.2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def network() -> Iterator[None]:
    """Two namespaces, each with its loopback and one end of a cable."""
    try:
        ip("netns", "add", NAMES[0])
        ip("netns", "exec", NAMES[0], "iptables", "--list")
    except (subprocess.CalledProcessError, FileNotFoundError) as failure:
        subprocess.run(["ip", "netns", "delete", NAMES[0]], capture_output=True)
        pytest.skip(f"network namespaces cannot be made here: {failure}")
    try:
        ip("netns", "add", NAMES[1])
        ends = [("cable0", "netns", NAMES[0]), ("cable1", "netns", NAMES[1])]
        ip("link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1])
        for index, name in enumerate(NAMES):
            ip("-n", name, "addr", "add", f"{ADDRESSES[index]}/24", "dev", f"cable{index}")
            ip("-n", name, "link", "set", f"cable{index}", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def enter(index: int) -> tuple[str, ...]:
    """Words before a pod's command; gloo and the rendezvous take the address of the cable."""
    own = (f"GLOO_SOCKET_IFNAME=cable{index}", f"PET_LOCAL_ADDR={ADDRESSES[index]}")
    return ("ip", "netns", "exec", NAMES[index], "env", *own)


def drop(on: bool) -> None:
    """Each end drops every packet that the cable brings, or no longer: no connection is told."""
    for index, name in enumerate(NAMES):
        rule = ("iptables", "--append" if on else "--delete", "INPUT", "-i", f"cable{index}", "-j", "DROP")
        ip("netns", "exec", name, *rule)


@pytest.fixture(scope="module")
def undisturbed(network: None, tmp_path_factory) -> dict[int, float]:
    folder = tmp_path_factory.mktemp("whole")
    return train_undisturbed(folder, 2, settings=STEPS, prefix=enter, host=ADDRESSES[0])


@pytest.mark.parametrize("seconds", [5, 60])
def test_a_run_outlives_it(tmp_path: Path, undisturbed, seconds: int, record_property) -> None:
    """5 s: the same attempt goes on. 60 s, with a limit of 20: both pods end with 134, and the next attempt goes on."""
    with open_pods(tmp_path, 2, settings=STEPS, prefix=enter, host=ADDRESSES[0]) as pods:
        pods.start()
        pods.wait_for_step(25)
        fault_t = time.time()
        drop(True)
        time.sleep(seconds)
        drop(False)
        assert pods.finish(again_after_s=2.0) == 0, pods.said()
        assert pods.losses() == undisturbed
        record_property("steps_lost", pods.steps_again())
        if seconds == 5:
            assert len(pods.starts()) == 1
            later = [line["t"] for line in pods.trained() if line["t"] > fault_t + 5]
            record_property("seconds_to_recover", round(min(later) - fault_t, 1))
        else:
            assert len(pods.starts()) == 2 and {code for _, code in pods.codes} <= {134, 0}
            ends = [line["t"] for ledger in pods.ledgers() for line in ledger if line["event"] == "ended"]
            assert min(ends) < fault_t + TIMEOUT_S + NOTICED_S
            assert "SL-rank-absent" not in pods.said(), "both have arrived, and the network has not"
            record_property("seconds_to_recover", round(pods.recovery_s(fault_t), 1))
