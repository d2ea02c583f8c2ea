"""A pod that is told to stop, at random moments, by a real signal to a real launcher: no step is lost.

Two ranks of one pod. Moments are drawn by a seed: start-up, training, validation and checkpoints are all hit, and the
table of where each signal fell is printed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TRIALS = int(os.environ.get("STRATLAB_FAULT_TRIALS", "20"))
GRACE_S = 120
STEPS, ENDLESS = 400, 100_000
"""The second: more than a quick machine makes before the signal comes."""
SETTINGS = {
    "TRAINER_RUN": "try",
    "TRAINER_MODEL": "cnn",
    "TRAINER_IMAGE_SIZE": "8",
    "TRAINER_GLOBAL_BATCH_SIZE": "16",
    "TRAINER_MICRO_BATCH_SIZE": "8",
    "TRAINER_EVALUATE_EVERY": "20",
    "TRAINER_CHECKPOINT_EVERY": "15",
    "TRAINER_PROFILE_STEPS": "0",
    "TRAINER_GRACE_S": str(GRACE_S),
    "TRAINER_MAX_ATTEMPTS": "1000",
    "PET_NPROC_PER_NODE": "2",
    "HOSTNAME": "pod-0",
    "OMP_NUM_THREADS": "1",
}


def start(results: Path, strategy: str, steps: int = STEPS) -> subprocess.Popen[bytes]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    of_run = {"TRAINER_RESULTS": str(results), "TRAINER_STRATEGY": strategy, "TRAINER_STEPS": str(steps)}
    env = kept | SETTINGS | of_run
    log = (results / "output.log").open("ab")
    with log:
        return subprocess.Popen([sys.executable, "-m", "trainer"], env=env, stdout=log, stderr=log)


def finish(results: Path, strategy: str) -> Path:
    results.mkdir(parents=True, exist_ok=True)
    process = start(results, strategy)
    assert process.wait(1200) == 0, (results / "output.log").read_text()[-3000:]
    return results / "default" / "try"


def lines(folder: Path, kind: str = "train") -> list[dict]:
    path = folder / "metrics.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in found if line["kind"] == kind]


def wait_for_step(process: subprocess.Popen[bytes], folder: Path, attempt: int, seconds: float = 300) -> None:
    """Until this attempt has written a step."""
    deadline = time.monotonic() + seconds
    while not any(line["attempt"] == attempt for line in lines(folder)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)


def newest(folder: Path) -> int:
    found = [path for path in (folder / "checkpoints").glob("step_*") if (path / "COMMIT").is_file()]
    return max((int(path.name.removeprefix("step_")) for path in found), default=0)


def stop(process: subprocess.Popen[bytes]) -> float:
    """Seconds until the end; with a second signal on the way."""
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    assert process.wait(GRACE_S) == 143
    return time.monotonic() - began


def assert_nobody_left(results: Path) -> None:
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            assert str(results).encode() not in entry.read_bytes(), entry
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue


@pytest.mark.parametrize("strategy", ["ddp"])
def test_no_step_is_lost_whenever_the_signal_comes(tmp_path, record_property, strategy):
    drawn, table = random.Random(19), []
    for trial in range(TRIALS):
        results = tmp_path / str(trial)
        results.mkdir()
        folder = results / "default" / "try"
        process = start(results, strategy, ENDLESS)
        try:
            if trial % 4 == 0:  # somewhere in the start, from the first instruction on
                time.sleep(drawn.uniform(0.3, 12.0))
            else:
                wait_for_step(process, folder, attempt=1)
                time.sleep(drawn.uniform(0.0, 4.0))
            seconds = stop(process)
        finally:
            process.terminate()  # not kill: the launcher must end its ranks
            process.wait(GRACE_S)
        reached = max((line["step"] for line in lines(folder)), default=0)
        table.append((trial, reached, newest(folder), round(seconds, 1)))
        assert newest(folder) == reached, table
        assert seconds < GRACE_S
        assert not list((folder / "checkpoints").glob(".tmp-*")), table
        assert_nobody_left(results)
    record_property("seconds_to_recover", max(seconds for *_, seconds in table))
    record_property("steps_lost", max(reached - saved for _, reached, saved, _ in table))
    print("trial, last step, saved, seconds:", *table, sep="\n")
    assert sum(reached == 0 for _, reached, _, _ in table) < TRIALS


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_that_was_stopped_five_times_is_the_one_that_never_was(tmp_path, strategy):
    drawn = random.Random(7)
    whole = finish(tmp_path / "whole", strategy)
    results = tmp_path / "stopped"
    results.mkdir()
    folder = results / "default" / "try"
    for attempt in range(1, 6):
        process = start(results, strategy)
        try:
            wait_for_step(process, folder, attempt)
            time.sleep(drawn.uniform(0.0, 0.5))
            stop(process)
        finally:
            process.terminate()
            process.wait(GRACE_S)
    finish(results, strategy)
    for kind, what in (("train", "loss"), ("eval", "validation_loss")):
        again = [(line["step"], line[what]) for line in lines(folder, kind)]
        assert again == [(line["step"], line[what]) for line in lines(whole, kind)]
    attempts = [json.loads(line) for line in (folder / "attempts.jsonl").open()]
    assert sum(line["event"] == "started" for line in attempts) == 6
    assert (folder / "model" / "model.safetensors").read_bytes() == (
        whole / "model" / "model.safetensors"
    ).read_bytes()
