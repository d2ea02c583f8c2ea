"""Every strategy's state under every other one: images, a tied decoder, adapters, experts; other world sizes too."""

from typing import Any

import pytest

from tests.trainer.strategies.moves import go_on, save
from tests.trainer.strategies.small import GLOBAL_BATCH

IMAGES = ("single", "ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3", "zeropp")
TEXT: dict[str, tuple[str, int, dict[str, Any]]] = {
    **{name: (name, 0, {}) for name in IMAGES[:-1]},
    "nd pp2": ("nd", 2, {"pp": 2}),
    "nd tp2 dp2": ("nd", 4, {"tp": 2, "dp_shard": 2}),
}
SIZES = {"fsdp": 4, "zero2": 4, "zero3": 1, "zero1": 4, "hsdp": 1}
CASES = ("tied", "adapters", "experts")


@pytest.mark.parametrize(("number", "source"), [*enumerate(IMAGES)])
def test_images(number, source, tmp_path):
    """Every second source has a part of its weights frozen."""
    case = ("images", "frozen")[number % 2]
    save(tmp_path / source, source, case)
    go_on(tmp_path / source, ("single",), case)
    go_on(tmp_path / source, IMAGES[1:], case)
    for target, world_size in SIZES.items():
        go_on(tmp_path / source, (target,), case, world_size)


@pytest.mark.parametrize("source", ["ddp", "fsdp", "zero1", "zero3"])
def test_momentum_and_half_precision(source, tmp_path):
    for name, settings in (
        ("moving", {"optimizer": "sgd", "momentum": 0.9}),
        # rounded once per micro-batch: its size is that of two ranks also where there is one
        ("bf16", {"precision": "bf16", "micro_batch_size": GLOBAL_BATCH // 4}),
    ):
        save(tmp_path / name, source, "images", **settings)
        go_on(tmp_path / name, ("ddp", "fsdp", "zero1", "zero3"), "images", **settings)


@pytest.mark.parametrize(("number", "source"), [*enumerate(TEXT)])
def test_text(number, source, tmp_path):
    case = CASES[number % 3]
    strategy, world_size, settings = TEXT[source]
    save(tmp_path / "source", strategy, case, world_size, **settings)
    for target, ranks, degrees in TEXT.values():
        go_on(tmp_path / "source", (target,), case, ranks, **degrees)
