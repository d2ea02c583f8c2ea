"""A run goes on from a checkpoint of another one: real workers, digits."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.trainer.kept_runs import STEPS, read, train
from tests.trainer.ranks.test_resume import losses


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_run_goes_on_from_another_one(tmp_path):
    keeps = {"TRAINER_CHECKPOINT_KEEP": "9", "TRAINER_CHECKPOINT_KEEP_FINISHED": "all"}
    whole = train(tmp_path, "fsdp", 2, **keeps)
    before = contents(whole)
    moved = {"TRAINER_RESUME_FROM": "default/fsdp/checkpoints/step_00000005"}
    folder = train(tmp_path, "zero2", 1, **moved)
    assert contents(whole) == before
    seen, wanted = losses(folder, 1), losses(whole, 1)
    assert list(seen) == list(range(6, STEPS + 1))
    assert seen == pytest.approx({step: wanted[step] for step in seen}, abs=1e-5)
    manifest = whole / "checkpoints" / "step_00000005" / "manifest.json"
    assert read(folder, "config.json")["resolved"]["resumed_from"] == {
        "run": "default/fsdp",
        "step": 5,
        "strategy": "fsdp",
        "world_size": 2,
        "manifest_sha256": hashlib.sha256(manifest.read_bytes()).hexdigest(),
    }
    a, b = read(folder, "summary.json"), read(whole, "summary.json")
    for name in ("data_order_sha256", "initial_weights_sha256"):
        assert a[name] == b[name]
    assert a["test_loss"] == pytest.approx(b["test_loss"], abs=1e-4)
