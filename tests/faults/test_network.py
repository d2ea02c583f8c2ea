"""F29: packets between two ranks are dropped, in network namespaces of their own, joined by a pair of interfaces."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.pods import open_pods, train_undisturbed

STEPS = {"TRAINER_STEPS": "150", "TRAINER_COLLECTIVE_TIMEOUT_S": "20"}
NAMES = tuple(f"stratlab-{os.getpid()}-{index}" for index in (0, 1))
ADDRESSES = ("10.99.7.1", "10.99.7.2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def network() -> Iterator[None]:
    """Two namespaces, each with its loopback and one end of a cable."""
    try:
        ip("netns", "add", NAMES[0])
    except (subprocess.CalledProcessError, FileNotFoundError) as failure:
        pytest.skip(f"network namespaces cannot be made here: {failure}")
    try:
        ip("netns", "add", NAMES[1])
        ip(
            "link",
            "add",
            "cable0",
            "netns",
            NAMES[0],
            "type",
            "veth",
            "peer",
            "name",
            "cable1",
            "netns",
            NAMES[1],
        )
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
    """Takes the cable's second end down, or up again: what is sent is lost, and no connection is told."""
    ip("-n", NAMES[1], "link", "set", "cable1", "down" if on else "up")


@pytest.fixture(scope="module")
def undisturbed(network: None, tmp_path_factory) -> dict[int, float]:
    return train_undisturbed(
        tmp_path_factory.mktemp("whole"), 2, settings=STEPS, prefix=enter, host=ADDRESSES[0]
    )


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
        attempts = len([line for line in pods.attempts() if line["event"] == "started"])
        record_property("steps_lost", pods.steps_again())
        if seconds == 5:
            assert attempts == 1
            record_property(
                "seconds_to_recover", round(first_step_after(pods, fault_t + seconds) - fault_t, 1)
            )
        else:
            assert attempts == 2 and {code for _, code in pods.codes} <= {134, 0}
            record_property("seconds_to_recover", round(pods.recovery_s(fault_t), 1))


def first_step_after(pods, moment: float) -> float:
    return min(line["t"] for line in pods.lines() if line["kind"] == "train" and line["t"] > moment)
