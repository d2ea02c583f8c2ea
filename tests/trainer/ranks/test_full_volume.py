"""The whole trainer on a volume that is really full: a file system of its own, mounted where no right is needed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import mlflow
import pytest

from tests.programs import find_python
from tests.trainer.ranks.test_launcher import ONE, environment

PRIVATE = ("unshare", "--user", "--map-root-user", "--mount")
LARGE = {"TRAINER_MODEL": "vit_tiny", "TRAINER_IMAGE_SIZE": "32", "TRAINER_PROFILE_STEPS": "0"}
"""A checkpoint of 2.4 MB."""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    if subprocess.run([*PRIVATE, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine has no user namespaces, so no small file system can be mounted")
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def launch_on(
    results: Path, size: str, beside: str = "", **settings: str
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The trainer with its results on `size` of memory, and what was in it at the end; `beside` runs with it."""
    kept = results.with_name("kept")
    mount = f"mount -t tmpfs -o size={size} none {results} && {{ {beside} }} || exit"
    mount = mount if beside else f"mount -t tmpfs -o size={size} none {results} || exit"
    mount += f'; "$@"; code=$?; rm -f {results}/filler; cp -r {results}/. {kept}; exit $code'
    command = [*PRIVATE, "sh", "-c", mount, "sh", find_python(), "-m", "trainer"]
    done = subprocess.run(
        command, env=environment(results, **settings), capture_output=True, text=True, timeout=200
    )
    return done, kept / "default" / "try"


@pytest.mark.parametrize("strategy", ["ddp", "zero2"])
def test_a_checkpoint_that_does_not_fit_is_left_out_and_the_next_ends_the_run(
    results: Path, mlflow_server: str, strategy: str
) -> None:
    """torch hides the cause in a BaseException, DeepSpeed waits for the other ranks: F9 all the same."""
    asked = {
        "TRAINER_STRATEGY": strategy,
        "TRAINER_CHECKPOINT_EVERY": "4",
        "MLFLOW_TRACKING_URI": mlflow_server,
    }
    ranks = ONE if strategy == "ddp" else {}
    done, run = launch_on(results, "1m", **LARGE, **ranks, **asked)
    assert done.returncode == 13, done.stdout[-3000:] + done.stderr[-3000:]
    record = json.loads((run / "mlflow.json").read_text())
    assert mlflow.MlflowClient(mlflow_server).get_run(record["run_id"]).info.status == "FAILED"
    assert "storage full (exit code 13)" in done.stderr and "Free space, then start it again" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "the checkpoint of step 4 is left out, training goes on" in done.stdout
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    steps = [line["step"] for line in lines if line["kind"] == "train"]
    assert steps == list(range(1, len(steps) + 1)) and 8 <= len(steps) <= 12, (
        "the step that all ranks agree on"
    )
    ends = [json.loads(line) for line in (run / "attempts.jsonl").open()]
    assert [line.get("exit_code") for line in ends] == [None, 13]
    assert not any((run / "checkpoints").iterdir())


def test_a_trace_that_does_not_fit_is_dropped_and_the_run_succeeds(results: Path) -> None:
    """F10: Kineto only prints that it could not write or rename its file."""
    done, run = launch_on(results, "256k", **ONE, TRAINER_STEPS="20")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "the trace of rank 0 is dropped, training goes on" in done.stdout
    manifest = json.loads((run / "traces" / "manifest.json").read_text())
    assert (manifest["complete"], manifest["files"]) == (False, []) and manifest["dropped"][0]["rank"] == 0
    assert sorted(path.name for path in (run / "traces").iterdir()) == ["manifest.json"]
    assert (run / "summary.json").is_file()


def test_a_volume_that_takes_nothing_at_all_is_no_crash(results: Path) -> None:
    done, _ = launch_on(results, "4k", **ONE)
    assert done.returncode == 13, done.stdout[-2000:] + done.stderr[-2000:]
    assert "storage full (exit code 13)" in done.stderr and "Traceback" not in done.stderr


def test_a_volume_that_fills_up_meanwhile_costs_no_finished_run(results: Path) -> None:
    """The results have their space from the start on."""
    begun = results / "default" / "try" / "attempts.jsonl"
    wait = f"timeout 60 sh -c 'until [ -e {begun} ]; do sleep 0.1; done'"
    fill = f"( {wait}; sleep 0.5; cat /dev/zero > {results}/filler ) >/dev/null 2>&1 &"
    done, run = launch_on(
        results,
        "6m",
        fill,
        **ONE,
        TRAINER_STEPS="300",
        TRAINER_PROFILE_STEPS="0",
        TRAINER_CHECKPOINT_EVERY="300",
        TRAINER_EVALUATE_EVERY="300",
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "the checkpoint of step 300 is left out" in done.stdout
    assert "the run ends without them" in done.stdout and not (run / "model").exists()
    assert json.loads((run / "summary.json").read_text())["steps"] == 300
    assert json.loads((run / "ranks" / "rank0.json").read_text())["done"] is True
    assert not (run / ".reserve").exists() and not [*run.rglob("*.tmp")]
