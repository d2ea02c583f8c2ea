"""F1, F4, F5: a rank or a whole pod is gone, and the run ends as if nothing had been."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults.pods import Pods, open_pods, train_undisturbed

STEPS = {"TRAINER_STEPS": "200"}
INTERVAL = 20
"""Steps between checkpoints (tests/faults/pods.py)."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[int, float]:
    return train_undisturbed(tmp_path_factory.mktemp("whole"), 2, settings=STEPS)


def wait_for_checkpoint(pods: Pods) -> int:
    pods.wait_for(lambda: bool(pods.committed()), "no checkpoint came")
    pods.wait_for_step(max(pods.losses()) + 5)
    return pods.committed()[-1]


def check(
    pods: Pods, fault_t: float, newest: int, whole: dict[int, float], record_property, limit_s: float
) -> None:
    """The losses are those of the whole run, and what was lost is bounded."""
    assert pods.losses() == whole, "bitwise"
    assert [line["exit_code"] for line in pods.attempts() if line["event"] == "ended"][-1] == 0
    starts = pods.starts()
    assert starts[0] == 0 and len(starts) == 2 and starts[1] >= newest > 0, starts
    seconds, again = pods.recovery_s(fault_t), pods.steps_again()
    record_property("seconds_to_recover", round(seconds, 1))
    record_property("steps_lost", again)
    assert again < 2 * INTERVAL, (
        "one interval, and of the next one what was made while its checkpoint was written"
    )
    assert seconds < limit_s


def test_a_rank_is_killed(tmp_path: Path, undisturbed, record_property) -> None:
    """One pod of two ranks; the rest of the pod ends with it."""
    with open_pods(tmp_path, 1, 2, settings=STEPS) as pods:
        pods.start()
        newest, fault_t = wait_for_checkpoint(pods), time.time()
        os.kill(pods.pids_of_ranks(0)[1], signal.SIGKILL)
        assert pods.finish() == 0, pods.said()
        assert [code for _, code in pods.codes] == [137, 0]
        check(pods, fault_t, newest, undisturbed, record_property, limit_s=60)


@pytest.mark.parametrize("lost", [1, 0])
def test_a_pod_is_lost(tmp_path: Path, undisturbed, record_property, lost: int) -> None:
    """The other pod must notice, end, and meet the new one; the first pod (0) holds the rendezvous as well."""
    with open_pods(tmp_path, 2, settings=STEPS) as pods:
        pods.start()
        newest, fault_t = wait_for_checkpoint(pods), time.time()
        pods.kill(lost)
        assert pods.finish(again_after_s=5.0) == 0, pods.said()
        assert (lost, 137) in pods.codes
        assert (1 - lost, 134) in pods.codes, "the survivor says that a peer was lost"
        check(pods, fault_t, newest, undisturbed, record_property, limit_s=120)
