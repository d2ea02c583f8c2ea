"""A student learns from a finished run: real workers; what is recorded. What is resumed: tests/nightly/trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.kept_runs import lines, read, train

TAUGHT = {
    "TRAINER_TEACHER": "default/single",
    "TRAINER_DISTIL_TEMPERATURE": "3",
    "TRAINER_DISTIL_WEIGHT": "0.8",
}
STUDENT = {"TRAINER_MODEL": "vit_tiny", "TRAINER_MODEL_LAYERS": "2", "TRAINER_COMPARISON": "students"}


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in lines(folder) if line["kind"] == "train"]


def student(results: Path, strategy: str, ranks: int, **more: str) -> Path:
    train(results, strategy, ranks, **{**TAUGHT, **STUDENT, **more})
    return results / more.get("TRAINER_COMPARISON", "students") / strategy


def test_what_is_recorded_of_a_teacher(tmp_path: Path, uninterrupted) -> None:
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / "single").symlink_to(uninterrupted("single", 1))
    folder = student(tmp_path, "ddp", 2, TRAINER_STEPS="3", TRAINER_EVALUATE_EVERY="3")
    resolved = read(folder, "config.json")["resolved"]
    teacher = read(tmp_path / "default" / "single", "config.json")["resolved"]
    assert resolved["teacher_parameters"] == teacher["parameters"] and len(resolved["teacher_sha256"]) == 64
    assert resolved["teacher_flops_per_sample"] == pytest.approx(teacher["flops_per_sample"] / 3)
    alone = 3 * 2 * (5 * (4 * 64**2 + 2 * 64 * 128) * 2 + 4 * 64 * 4**2) + 3 * 4 * 5**2 * 64 * 2
    both = alone + resolved["teacher_flops_per_sample"]
    assert resolved["flops_per_sample"] == pytest.approx(both, rel=0.01)
    facts = read(folder, "ranks/rank0.json")
    assert facts["dtypes"]["teacher"] == ["float32"] and "teacher" not in facts["state_memory_gib"]
    assert not list((folder / "model").glob("*teacher*"))
