"""States that move between strategies, compiled blocks, and DeepSpeed's flops profiler beside the lab's own count."""

import json
import re
from pathlib import Path

import pytest

from stratlab_spec.run_directory import RunDirectory
from tests.trainer.ranks.test_launcher import launch

SIZES = {"M": 1e6, "K": 1e3, "G": 1e9, "": 1.0}
ON = {"TRAINER_FLOPS_PROFILER": "true", "TRAINER_MODEL": "vit_tiny", "TRAINER_IMAGE_SIZE": "16"}


def train(results: Path, **settings: str) -> RunDirectory:
    done = launch(results, **{"TRAINER_GLOBAL_BATCH_SIZE": "16", "TRAINER_MICRO_BATCH_SIZE": "4"} | settings)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return RunDirectory(results, "default", "try")


def read_macs(folder: RunDirectory, of: str = "fwd MACs per GPU:") -> float:
    found = re.search(rf"{of}.*?([\d.]+) ([MKG]?)MACs", folder.flops_profiler.read_text())
    assert found, folder.flops_profiler.read_text()[:2000]
    return float(found[1]) * SIZES[found[2]]


def read_resolved(folder: RunDirectory) -> dict:
    return json.loads(folder.config.read_text())["resolved"]


def test_it_disturbs_one_step_that_no_time_counts_and_no_number(tmp_path):
    zero2 = ON | {"TRAINER_STRATEGY": "zero2", "TRAINER_ACTIVATION_CHECKPOINTING": "blocks"}
    with_it = train(tmp_path / "with", **zero2)
    without = train(tmp_path / "without", **zero2 | {"TRAINER_FLOPS_PROFILER": "false"})
    # blocks that are recomputed are counted once
    assert 6 * read_macs(with_it) / 4 == pytest.approx(read_resolved(with_it)["flops_per_sample"], rel=1e-3)
    assert with_it.flops_profiler.exists() and not without.flops_profiler.exists()
    lines = [
        [line for line in map(json.loads, folder.metrics.read_text().splitlines()) if line["kind"] == "train"]
        for folder in (with_it, without)
    ]
    numbers = [[(line["step"], line["loss"], line["grad_norm"]) for line in one] for one in lines]
    assert numbers[0] == numbers[1]
    (step,) = re.findall(r"Profile Summary at step (\d+):", with_it.flops_profiler.read_text())
    assert [line["profiled"] for line in lines[0] if line["step"] == int(step)] == [True]
    assert int(step) == json.loads(with_it.manifest.read_text())["first_step"] - 1
    assert json.loads(with_it.deepspeed.read_text())["flops_profiler"]["enabled"] is False
