"""F23: all pods of a run are told to stop, as by a queue that preempts it, and start again later."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.faults.pods import open_pods, train_undisturbed

STEPS = {"TRAINER_STEPS": "100"}
GRACE_S = 120


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_that_was_preempted_loses_no_step(tmp_path: Path, record_property, strategy: str) -> None:
    settings = STEPS | {"TRAINER_STRATEGY": strategy}
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
        starts = [line["from_step"] for line in pods.attempts() if line["event"] == "started"]
        record_property("seconds_to_recover", round(pods.recovery_s(resumed), 1))
        record_property("steps_lost", reached - starts[1])
        assert starts == [0, reached] and pods.steps_again() == 0
        assert pods.losses() == whole, "bitwise"
