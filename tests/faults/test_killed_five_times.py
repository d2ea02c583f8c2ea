"""F1, five times over: all processes of a run are killed at random moments, and it ends as the run that never was."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.faults.pods import Pods, open_pods

KILLS = 5
INTERVAL = 15
SETTINGS = {
    "TRAINER_STEPS": "600",
    "TRAINER_EVALUATE_EVERY": "20",
    "TRAINER_CHECKPOINT_EVERY": str(INTERVAL),
    "TRAINER_MAX_ATTEMPTS": "1000",
}

STRATEGIES: dict[str, tuple[int, dict[str, str]]] = {
    "ddp": (2, {}),
    "fsdp": (2, {}),
    "hsdp": (4, {"TRAINER_DP_SHARD": "2", "TRAINER_MICRO_BATCH_SIZE": "4"}),
    "nd": (
        2,
        {
            "TRAINER_MODEL": "qwen_tiny",
            "TRAINER_IMAGE_SIZE": "0",
            "TRAINER_DATASET": "arithmetic",
            "TRAINER_TRAIN_SAMPLES": "96",
            "TRAINER_VALIDATION_FRACTION": "0.02",
            "TRAINER_SEQ_LEN": "64",
            "TRAINER_LAYOUT": "given",
            "TRAINER_TP": "2",
        },
    ),
}
"""Name -> processes, further settings. On a CPU two partial sums have one order, so a tp of 2 is bitwise, too."""


def numbers(pods: Pods) -> dict[tuple[str, int], set[float]]:
    """(kind, step) -> what all attempts that made it have found."""
    found: dict[tuple[str, int], set[float]] = {}
    for line in pods.lines():
        for kind, name in (("train", "loss"), ("eval", "validation_loss")):
            if line["kind"] == kind:
                found.setdefault((kind, line["step"]), set()).add(line[name])
    return found


def weights(pods: Pods) -> bytes:
    return (pods.folder.path / "model" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_that_was_killed_five_times_is_the_one_that_never_was(
    tmp_path: Path, record_property, strategy: str
) -> None:
    drawn = random.Random(11)
    processes, settings = STRATEGIES[strategy]
    settings = SETTINGS | {"TRAINER_STRATEGY": strategy} | settings
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    with open_pods(tmp_path / "whole", 1, processes, settings) as whole:
        whole.start()
        assert whole.finish() == 0, whole.said()
    times = [line["t"] for line in whole.lines() if line["kind"] == "train"]
    most_s = (times[-1] - times[0]) / (KILLS + 1)
    seconds = []
    with open_pods(tmp_path / "killed", 1, processes, settings) as pods:
        pods.start()
        for attempt in range(1, KILLS + 1):
            pods.wait_for_step(1, attempt)
            time.sleep(drawn.uniform(0.0, most_s))
            pods.kill(0)
            killed_at = time.time()
            pods.start()
            pods.wait_for_step(1, attempt + 1)
            seconds.append(min(line["t"] for line in pods.lines() if line["attempt"] > attempt) - killed_at)
        assert pods.finish() == 0, pods.said()
        starts = [line["from_step"] for line in pods.attempts() if line["event"] == "started"]
        assert len(starts) == KILLS + 1 and starts == sorted(starts) and starts[-1] > 0, starts
        reached = [
            max(
                line["step"]
                for line in pods.lines()
                if line["attempt"] == attempt and line["kind"] == "train"
            )
            for attempt in range(1, KILLS + 1)
        ]
        print("killed behind steps", reached, "went on behind", starts[1:])
        lost = max(step - start for step, start in zip(reached, starts[1:], strict=True))
        assert 0 <= lost <= 2 * INTERVAL, "the interval, and that of the checkpoint that was being written"
        record_property("seconds_to_recover", round(max(seconds), 1))
        record_property("steps_lost", lost)
        assert numbers(pods) == numbers(whole), "bitwise, in each attempt that made a step"
        assert weights(pods) == weights(whole)
