"""What is left of a run that ended, with the real worker."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks

SETTINGS = {
    "TRAINER_RUN": "try",
    "TRAINER_MODEL": "ensemble",
    "TRAINER_IMAGE_SIZE": "8",
    "TRAINER_PERSISTENT_ELEMENTS": "1000",
    "TRAINER_STEPS": "4",
    "TRAINER_CHECKPOINT_EVERY": "2",
    "TRAINER_EVALUATE_EVERY": "2",
    "TRAINER_GLOBAL_BATCH_SIZE": "16",
    "TRAINER_MICRO_BATCH_SIZE": "8",
    "TRAINER_PROFILE_STEPS": "0",
    "TRAINER_TRAIN_SAMPLES": "64",
    "STRATLAB_LAUNCHER": "test",
}


def be_worker() -> None:
    from trainer import worker

    raise SystemExit(worker.main())


@pytest.mark.parametrize("strategy", ["zero3"])
def test_they_are_written_though_the_last_evaluation_left_gathers_under_way(strategy, tmp_path):
    """In an ensemble DeepSpeed fetches, at the end of a forward pass, what the backward pass of a member would need."""
    given = {"TRAINER_RESULTS": str(tmp_path), "TRAINER_STRATEGY": strategy}
    run_ranks(be_worker, 2, env=SETTINGS | given, timeout_s=120)
    folder = tmp_path / "default" / "try"
    assert (folder / "model" / "model.safetensors").is_file() and (folder / "evaluation.json").is_file()
