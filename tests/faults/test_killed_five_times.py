"""F1 and F6, five times over: a run is killed or stopped at random moments, and ends as the one that never was."""

import random
import signal
import time

import pytest

from tests.faults.pods import Pods, open_pods

TIMES, INTERVAL = 5, 15
SETTINGS = {
    "TRAINER_STEPS": "600", "TRAINER_EVALUATE_EVERY": "20", "TRAINER_CHECKPOINT_EVERY": str(INTERVAL),
    "TRAINER_MAX_ATTEMPTS": "1000",
}  # fmt: skip
ND = {
    "TRAINER_MODEL": "qwen_tiny", "TRAINER_IMAGE_SIZE": "0", "TRAINER_DATASET": "arithmetic",
    "TRAINER_TRAIN_SAMPLES": "96", "TRAINER_VALIDATION_FRACTION": "0.02", "TRAINER_SEQ_LEN": "64",
    "TRAINER_LAYOUT": "given", "TRAINER_TP": "2",
}  # fmt: skip
HSDP = {"TRAINER_DP_SHARD": "2", "TRAINER_MICRO_BATCH_SIZE": "4"}
RUNS = [
    ("ddp", 2, {}, "killed"), ("fsdp", 2, {}, "stopped"), ("hsdp", 4, HSDP, "killed"), ("nd", 2, ND, "killed"),
]  # fmt: skip
"""Strategy, processes, further settings. On a CPU two partial sums have one order, so a tp of 2 is bitwise, too."""


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


@pytest.mark.parametrize(("strategy", "processes", "more", "how"), RUNS)
def test_a_run_that_ended_five_times_is_the_one_that_never_did(
    tmp_path, record_property, strategy, processes, more, how
):
    drawn, seconds = random.Random(11), []
    settings = SETTINGS | {"TRAINER_STRATEGY": strategy} | more
    (tmp_path / "whole").mkdir()
    (tmp_path / how).mkdir()
    with open_pods(tmp_path / "whole", 1, processes, settings) as whole:
        whole.start()
        assert whole.finish() == 0, whole.said()
    times = [line["t"] for line in whole.trained()]
    most_s = (times[-1] - times[0]) / (TIMES + 1)
    with open_pods(tmp_path / how, 1, processes, settings) as pods:
        pods.start()
        for attempt in range(1, TIMES + 1):
            pods.wait_for_step(1, attempt)
            time.sleep(drawn.uniform(0.0, most_s))
            if how == "killed":
                pods.kill(0)
            else:
                pods.send(0, signal.SIGTERM)
                assert pods.wait_for_end(0, 120) == 143
            ended_at = time.time()
            pods.start()
            pods.wait_for_step(1, attempt + 1)
            seconds.append(min(line["t"] for line in pods.lines() if line["attempt"] > attempt) - ended_at)
        assert pods.finish() == 0, pods.said()
    starts = pods.starts()
    assert len(starts) == TIMES + 1 and starts == sorted(starts) and starts[-1] > 0, starts
    made = [(line["attempt"], line["step"]) for line in pods.trained()]
    reached = [max(step for number, step in made if number == attempt) for attempt in range(1, TIMES + 1)]
    lost = max(step - start for step, start in zip(reached, starts[1:], strict=True))
    # the interval, and that of the checkpoint that was being written
    assert 0 <= lost <= (2 * INTERVAL if how == "killed" else 0), (reached, starts)
    record_property("seconds_to_recover", round(max(seconds), 1))
    record_property("steps_lost", lost)
    assert numbers(pods) == numbers(whole), "bitwise, in each attempt that made a step"
    assert weights(pods) == weights(whole)
