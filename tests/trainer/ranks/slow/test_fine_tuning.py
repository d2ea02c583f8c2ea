"""A small folder of published weights; that of ViT-B's own shape is in tests/nightly/trainer."""

from __future__ import annotations

from pathlib import Path

from tests.trainer.data.cifar_like import build_cifar_like
from tests.trainer.fine_tuning import Shape, check_every_strategy_fine_tunes

SMALL = Shape(layers=2, width=96, heads=3)


def test_ddp_and_adapters_fine_tune_the_same_checkpoint(tmp_path: Path) -> None:
    checkpoint = SMALL.write(tmp_path / "vit-small-patch16-224")
    data = build_cifar_like(tmp_path / "cifar-like", classes=100, train=100, test=40)
    settings = {"TRAINER_DATASET_PATH": str(data)}
    check_every_strategy_fine_tunes(
        tmp_path / "results", checkpoint, SMALL, settings, classes=100, names=("ddp", "lora")
    )
