"""Whole runs: complete directories, another Python's state, a kept forecast, a folder that is gone, a full volume."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import pytest

from stratlab_spec.memory.profiles import FOLDER
from tests.codes import find_codes
from tests.programs import find_python
from tests.ranks import fork_ranks, run_ranks
from tests.trainer.ranks import test_worker
from tests.trainer.ranks.slow import test_worker as test_full_volume
from tests.trainer.ranks.slow.test_worker import launch_on
from tests.trainer.ranks.test_launcher import ONE, environment
from tests.trainer.ranks.test_worker import CHECKS, be_worker, settings
from tests.trainer.strategies.ranks.test_state import load_and_continue, read, save_by_name
from tests.trainer.strategies.small import largest_difference

finished = test_worker.finished


@pytest.mark.parametrize("strategy", ["hsdp", "zero1", "zero3", "zeropp"])
def test_the_run_directory_is_complete(finished, strategy):
    for check in CHECKS:
        check(finished(strategy))


STRATEGIES = ("single", "ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3", "zeropp")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_goes_on_from_what_the_images_python_has_saved(strategy, tmp_path):
    world_size = 1 if strategy == "single" else 2
    run_ranks(lambda: save_by_name(tmp_path / "state", tmp_path / "whole", strategy), world_size)
    run_ranks(lambda: load_and_continue(tmp_path / "state", tmp_path / "resumed", strategy), world_size)
    assert largest_difference(read(tmp_path / "whole"), read(tmp_path / "resumed")) == 0.0


def test_the_run_directory_tells_what_was_foreseen(tmp_path: Path):
    env = settings(tmp_path, "ddp", TRAINER_PROFILE_STEPS="0", TRAINER_STEPS="4")
    (tmp_path / FOLDER).mkdir()
    options = ["--ranks", "2", "--operations", str(tmp_path / FOLDER / "ddp.json")]
    subprocess.run(
        [sys.executable, "-m", "trainer.count", *options],
        env=os.environ | env,
        check=True,
        capture_output=True,
    )
    done = fork_ranks(be_worker, 2, env=env)
    assert [rank.exit_code for rank in done] == [0, 0], "\n".join(rank.output[-2000:] for rank in done)
    folder = tmp_path / "default" / "ddp"
    kept = json.loads((folder / "config.json").read_text())["resolved"]["memory_forecast"]
    summary = json.loads((folder / "summary.json").read_text())
    results = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (sent,) = [line for line in results if line["kind"] == "result"]
    assert kept["operations_file"] == "ddp.json" and not kept["at_most"]
    assert sum(kept["causes_gib"].values()) == pytest.approx(kept["peak_gib"])
    assert kept["causes_gib"]["parameters"] == pytest.approx(
        summary["parameter_memory_gib"], rel=0.05
    )  # blocks
    assert summary["forecast_memory_gib"] == sent["forecast_memory_gib"] == kept["peak_gib"]
    assert "forecast_memory_error_pct" not in summary, "a CPU has no device memory"


def test_it_is_noticed_at_the_next_write(tmp_path: Path, mlflow_server: str) -> None:
    more = {"TRAINER_STEPS": "100000", "TRAINER_PROFILE_STEPS": "0", "TRAINER_COMPARISON": "gone"}
    env = environment(tmp_path, **ONE, **more, MLFLOW_TRACKING_URI=mlflow_server)
    command = [find_python(), "-m", "trainer"]
    pipe = subprocess.PIPE
    folder = tmp_path / "gone" / "try"
    with subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True) as running:
        try:
            deadline = time.monotonic() + 100
            while not ((folder / "metrics.sent").exists() and (folder / "metrics.sent").read_text() > "0"):
                assert running.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
            with open(folder / "metrics.jsonl") as metrics:
                shutil.rmtree(folder)
                out, err = running.communicate(timeout=100)
                written = {line["step"] for line in map(json.loads, metrics) if line["kind"] == "train"}
        finally:
            running.kill()
    assert running.returncode == 13, out[-2000:] + err[-2000:]
    assert str(folder) in err and "Traceback" not in out + err
    client = mlflow.MlflowClient(mlflow_server)
    experiment = client.get_experiment_by_name("gone")
    (run,) = client.search_runs([experiment.experiment_id])
    points = {point.step for point in client.get_metric_history(run.info.run_id, "loss")}
    assert run.info.status == "FAILED" and points == written == {*range(1, max(written) + 1)}
    assert not folder.exists()


results = test_full_volume.results


def test_a_trace_that_does_not_fit_is_dropped_and_the_run_succeeds(results: Path) -> None:
    """F10: Kineto only prints that it could not write or rename its file."""
    done, run = launch_on(results, "256k", **ONE, TRAINER_STEPS="16")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    manifest = json.loads((run / "traces" / "manifest.json").read_text())
    assert (manifest["complete"], manifest["files"]) == (False, []) and manifest["dropped"][0]["rank"] == 0
    assert sorted(path.name for path in (run / "traces").iterdir()) == ["manifest.json"]
    assert (run / "summary.json").is_file()


def test_a_volume_that_fills_up_meanwhile_costs_no_finished_run(results: Path) -> None:
    """The results have their space from the start on."""
    begun = results / "default" / "try" / "attempts.jsonl"
    wait = f"timeout 60 sh -c 'until [ -e {begun} ]; do sleep 0.1; done'"
    fill = f"( {wait}; sleep 0.5; cat /dev/zero > {results}/filler ) >/dev/null 2>&1 &"
    rarely = {f"TRAINER_{name}": "300" for name in ("STEPS", "CHECKPOINT_EVERY", "EVALUATE_EVERY")}
    done, run = launch_on(results, "6m", fill, **ONE, **rarely, TRAINER_PROFILE_STEPS="0")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert {"SL-checkpoint-left-out", "SL-weights-left-out"} <= {*find_codes(done.stdout)}
    assert not (run / "model").exists()
    assert json.loads((run / "summary.json").read_text())["steps"] == 300
    assert json.loads((run / "ranks" / "rank0.json").read_text())["done"] is True
    assert not (run / ".reserve").exists() and not [*run.rglob("*.tmp")]
