"""Every strategy's state under every other one: images, a tied decoder, adapters, experts; other world sizes too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.strategies.moves import go_on, save
from tests.trainer.strategies.small import GLOBAL_BATCH

IMAGES = ("single", "ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3", "zeropp")
ND: dict[str, tuple[str, int, dict[str, Any]]] = {
    "nd pp2": ("nd", 2, {"pp": 2}),
    "nd tp2 dp2": ("nd", 4, {"tp": 2, "dp_shard": 2}),
}
TEXT: dict[str, tuple[str, int, dict[str, Any]]] = {
    **{name: (name, 0, {}) for name in ("single", "ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3")},
    **ND,
}
SIZES = {"fsdp": 4, "zero2": 4, "zero3": 1, "zero1": 4, "hsdp": 1}


@pytest.mark.parametrize("case", ["images", "frozen"])
@pytest.mark.parametrize("source", IMAGES)
def test_images(source, case, tmp_path):
    save(tmp_path / source, source, case)
    go_on(tmp_path / source, ("single",), case)
    go_on(tmp_path / source, IMAGES[1:], case)
    for target, world_size in SIZES.items():
        go_on(tmp_path / source, (target,), case, world_size)


@pytest.mark.parametrize("source", IMAGES)
def test_another_optimizer_and_half_precision(source, tmp_path):
    moving = {"optimizer": "sgd", "momentum": 0.9}
    for name, settings in (
        ("sgd", {"optimizer": "sgd"}),
        ("moving", moving),
        # rounded once per micro-batch: its size is that of two ranks also where there is one
        ("bf16", {"precision": "bf16", "micro_batch_size": GLOBAL_BATCH // 4}),
    ):
        save(tmp_path / name, source, "images", **settings)
        go_on(tmp_path / name, ("ddp", "fsdp", "zero1", "zero3"), "images", **settings)


@pytest.mark.parametrize("case", ["tied", "adapters", "experts"])
@pytest.mark.parametrize("source", TEXT)
def test_text(source, case, tmp_path):
    strategy, world_size, settings = TEXT[source]
    save(tmp_path / "source", strategy, case, world_size, **settings)
    for target, ranks, degrees in TEXT.values():
        go_on(tmp_path / "source", (target,), case, ranks, **degrees)
