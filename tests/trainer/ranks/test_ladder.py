"""A run that runs out of memory climbs: real launcher, real ranks, torch's own error planted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.trainer.kept_runs import lines
from tests.trainer.planted_memory import plant
from tests.trainer.ranks.test_launcher import environment

SETTINGS = {
    "TRAINER_MODEL": "vit_tiny",
    "TRAINER_IMAGE_SIZE": "32",
    "TRAINER_STEPS": "8",
    "TRAINER_CHECKPOINT_EVERY": "2",
    "TRAINER_GLOBAL_BATCH_SIZE": "8",
    "TRAINER_MICRO_BATCH_SIZE": "2",
    "TRAINER_PROFILE_STEPS": "0",
    "TRAINER_TRAIN_SAMPLES": "64",
    "TRAINER_LOG_EVERY": "1",
}


def launch(results: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = environment(results, **SETTINGS | more)
    return subprocess.run(
        [sys.executable, "-m", "trainer"], env=env, capture_output=True, text=True, timeout=900
    )


def losses(folder: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines(folder) if line["kind"] == "train"}


def test_without_the_ladder_or_behind_its_end_the_run_ends_with_10(tmp_path):
    one = {"PET_NPROC_PER_NODE": "1", "TRAINER_STRATEGY": "single", "TRAINER_MICRO_BATCH_SIZE": "1"}
    one |= {"TRAINER_ACTIVATION_CHECKPOINTING": "blocks"}
    planted = plant(tmp_path / "planted", (0, 1, 0))
    off = launch(tmp_path, TRAINER_RUN="off", **one, **planted)
    assert off.returncode == 10 and not (tmp_path / "default" / "off" / "rungs.json").exists()
    on = launch(tmp_path, TRAINER_RUN="on", TRAINER_OOM_LADDER="true", **one, **planted)
    assert on.returncode == 10 and "no rung of the ladder is left" in on.stderr
