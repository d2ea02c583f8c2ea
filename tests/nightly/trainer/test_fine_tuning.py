"""A checkpoint of exactly the shape of google/vit-base-patch16-224: 86 million weights."""

from __future__ import annotations

from pathlib import Path

from tests.trainer.data.cifar_like import build_cifar_like
from tests.trainer.fine_tuning import Shape, check_every_strategy_fine_tunes


def test_every_strategy_fine_tunes_the_same_checkpoint(tmp_path: Path) -> None:
    shape, positions = Shape(), 196 - 1  # 14 x 14 in the checkpoint, a single one for images of 16 pixels
    assert shape.body == 85_798_656 - positions * 768
    checkpoint = shape.write(tmp_path / "vit-base-patch16-224")
    data = build_cifar_like(tmp_path / "cifar-like", classes=100, train=100, test=40)
    settings = {"TRAINER_DATASET_PATH": str(data)}
    check_every_strategy_fine_tunes(tmp_path / "results", checkpoint, shape, settings, 100)
