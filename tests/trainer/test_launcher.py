"""The pod's entry point as Kubernetes starts it: a process with an environment and an exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer.__main__ import first_failure
from trainer.failures import exit_code, reason

QUICK = {
    "TRAINER_RUN": "try",
    "TRAINER_STRATEGY": "ddp",
    "TRAINER_MODEL": "cnn",
    "TRAINER_IMAGE_SIZE": "8",
    "TRAINER_STEPS": "12",
    "TRAINER_GLOBAL_BATCH_SIZE": "16",
    "TRAINER_MICRO_BATCH_SIZE": "8",
    "PET_NPROC_PER_NODE": "2",
}


def environment(results: Path, **more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {"TRAINER_RESULTS": str(results), "OMP_NUM_THREADS": "1"} | QUICK | more


def launch(results: Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainer"]
    return subprocess.run(
        command, env=environment(results, **more), capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("settings", "code", "sentence"),
    [
        ({"TRAINER_TPP": "2"}, 2, "TRAINER_TPP: unknown setting"),
        (
            {"TRAINER_GLOBAL_BATCH_SIZE": "20"},
            2,
            "must be a multiple of TRAINER_MICRO_BATCH_SIZE=8 x 2 processes",
        ),
        ({"PET_NNODES": "0"}, 2, "PET_NNODES='0': expected a number from 1"),
        ({"PET_NNODES": "1:4"}, 2, "PET_NNODES=1:4: the size of a run is fixed"),
        ({"TRAINER_IMAGE_SIZE": "9"}, 2, "TRAINER_IMAGE_SIZE=9: cnn needs a multiple of 8, for example 8"),
        (
            {
                "PET_NPROC_PER_NODE": "3",
                "TRAINER_GLOBAL_BATCH_SIZE": "24",
                "TRAINER_TRAIN_SAMPLES": "2",
            },
            2,
            "TRAINER_GLOBAL_BATCH_SIZE=24: there are only 2 training samples",
        ),
        (
            {"TRAINER_DATASET_PATH": "/nowhere/pets"},
            3,
            "TRAINER_DATASET_PATH='/nowhere/pets': no such folder",
        ),
        (
            {"MLFLOW_TRACKING_URI": "mlruns"},
            2,
            "MLFLOW_TRACKING_URI='mlruns': expected the address of a server",
        ),
    ],
)
def test_what_cannot_run_ends_before_torch_and_leaves_nothing(tmp_path, settings, code, sentence):
    began = time.monotonic()
    done = launch(tmp_path / "results", **settings)
    assert (done.returncode, sentence in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "results").exists()
    assert time.monotonic() - began < 30


def test_help_and_stray_arguments():
    for argument, code in (("--help", 0), ("--steps=3", 2)):
        done = subprocess.run([sys.executable, "-m", "trainer", argument], capture_output=True, text=True)
        assert done.returncode == code and "python -m trainer" in done.stdout


def test_a_run_ends_with_0_and_is_not_started_twice(tmp_path):
    done = launch(tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    folder = tmp_path / "default" / "try"
    attempts = [json.loads(line) for line in (folder / "attempts.jsonl").open()]
    assert [(a["event"], a.get("exit_code")) for a in attempts] == [("started", None), ("ended", 0)]
    assert len({a["launcher"] for a in attempts}) == 1
    again = launch(tmp_path)
    assert again.returncode == 2 and "this run has finished already" in again.stderr

    (folder / "summary.json").unlink()  # as if the first attempt had not come to its end
    other = launch(tmp_path, TRAINER_LR="0.5")
    assert other.returncode == 2 and "started with other settings: lr=0.5 (was 0.001)" in other.stderr
    fewer = launch(tmp_path, PET_NPROC_PER_NODE="1")
    assert fewer.returncode == 2 and "other settings: processes=1 (was 2)" in fewer.stderr


def test_a_stopped_pod_ends_with_143_and_leaves_no_rank_behind(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer"], env=environment(tmp_path, TRAINER_STEPS="100000")
    )
    folder = tmp_path / "default" / "try"
    try:
        deadline = time.monotonic() + 90
        while not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").stat().st_size:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    finally:
        process.terminate()  # not kill: torch's launcher must end its ranks
        process.wait(60)
    last = json.loads((folder / "attempts.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["exit_code"], last["reason"]) == ("ended", 143, "stopped by SIGTERM")
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            assert str(tmp_path).encode() not in entry.read_bytes()
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue


@pytest.mark.parametrize(
    ("exit_codes", "culprit"),
    [
        ({0: 134, 1: 10}, (1, 10)),
        ({0: -15, 1: 12}, (1, 12)),
        ({0: -9, 1: 134}, (0, 137)),
        ({1: 134}, (1, 134)),
        ({0: -15, 1: -15}, (0, 143)),
    ],
)
def test_the_culprit_is_told_from_the_survivors(exit_codes, culprit):
    assert first_failure(exit_codes) == culprit


def test_failures_have_their_codes():
    class OutOfMemoryError(RuntimeError):
        """Named like torch's."""

    assert exit_code(OutOfMemoryError()) == 10
    assert exit_code(OSError(28, "No space left on device")) == 13
    assert exit_code(RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:1")) == 134
    assert exit_code(RuntimeError("shapes do not match")) == 1
    assert reason(139) == "signal 11"
