"""A checkpoint of exactly the shape of google/vit-base-patch16-224: 86 million weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.data.cifar_like import build_cifar_like
from tests.trainer.fine_tuning import Shape, check_every_strategy_fine_tunes

VIT_BASE = Shape()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return VIT_BASE.write(tmp_path_factory.mktemp("models") / "vit-base-patch16-224")


@pytest.mark.parametrize(("name", "classes"), [("digits", 10), ("cifar-like", 100)])
def test_every_strategy_fine_tunes_the_same_checkpoint(
    tmp_path: Path, checkpoint: Path, name: str, classes: int
) -> None:
    positions = 196 - 1  # 14 x 14 in the checkpoint, a single one for images of 16 pixels
    assert VIT_BASE.body == 85_798_656 - positions * 768
    settings = {"TRAINER_DATASET": "digits"}
    if name == "cifar-like":
        data = build_cifar_like(tmp_path / name, classes=classes, train=100, test=40)
        settings = {"TRAINER_DATASET_PATH": str(data)}
    check_every_strategy_fine_tunes(tmp_path / "results", checkpoint, VIT_BASE, settings, classes)
