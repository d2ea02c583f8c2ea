"""F6 and F23: a run is told to stop by real signals to real launchers, at random moments: no step is lost."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.faults.pods import Pods, open_pods, train_undisturbed

TRIALS = int(os.environ.get("STRATLAB_FAULT_TRIALS", "20"))
GRACE_S = 120
SETTINGS = {
    "TRAINER_STEPS": "100000",  # more than a quick machine makes before the signal comes
    "TRAINER_EVALUATE_EVERY": "20",
    "TRAINER_CHECKPOINT_EVERY": "15",
    "TRAINER_GRACE_S": str(GRACE_S),
}


def stop(pods: Pods) -> float:
    """Seconds until the end of one pod; with a second signal on the way."""
    began = time.monotonic()
    pods.send(0, signal.SIGTERM)
    time.sleep(0.05)
    pods.send(0, signal.SIGTERM)
    assert pods.wait_for_end(0, GRACE_S) == 143, pods.said()
    return time.monotonic() - began


def assert_nobody_left(results: Path) -> None:
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            assert str(results).encode() not in entry.read_bytes(), entry
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue


def test_no_step_is_lost_whenever_the_signal_comes(tmp_path: Path, record_property) -> None:
    drawn, table = random.Random(19), []
    for trial in range(TRIALS):
        (results := tmp_path / str(trial)).mkdir()
        with open_pods(results, 1, 2, SETTINGS) as pods:
            pods.start()
            if trial % 4 == 0:  # somewhere in the start, from the first instruction on
                time.sleep(drawn.uniform(0.3, 12.0))
            else:
                pods.wait_for_step(1)
                time.sleep(drawn.uniform(0.0, 4.0))
            seconds = stop(pods)
        reached, saved = max(pods.losses(), default=0), max(pods.committed(), default=0)
        table.append((trial, reached, saved, round(seconds, 1)))
        assert saved == reached, table
        assert not list(pods.folder.checkpoints.glob(".tmp-*")), table
        assert_nobody_left(results)
    print("trial, last step, saved, seconds:", *table, sep="\n")
    record_property("seconds_to_recover", max(seconds for *_, seconds in table))
    record_property("steps_lost", max(reached - saved for _, reached, saved, _ in table))
    assert any(reached for _, reached, *_ in table)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_that_was_preempted_loses_no_step(tmp_path: Path, record_property, strategy: str) -> None:
    """F23: both pods of a run are told to stop, as by a queue that preempts it, and start again later."""
    settings = {"TRAINER_STEPS": "100", "TRAINER_STRATEGY": strategy}
    whole = train_undisturbed(tmp_path / "whole", 2, settings=settings)
    (tmp_path / "preempted").mkdir()
    with open_pods(tmp_path / "preempted", 2, settings=settings) as pods:
        pods.start()
        pods.wait_for_step(25)
        for pod in (0, 1):
            pods.send(pod, signal.SIGTERM)
        assert [pods.wait_for_end(pod, GRACE_S) for pod in (0, 1)] == [143, 143], pods.said()
        reached, resumed = max(pods.losses()), time.time()
        pods.start()
        assert pods.finish() == 0, pods.said()
        record_property("seconds_to_recover", round(pods.recovery_s(resumed), 1))
        record_property("steps_lost", reached - pods.starts()[1])
        assert pods.starts() == [0, reached] and pods.steps_again() == 0
        assert pods.losses() == whole, "bitwise"
