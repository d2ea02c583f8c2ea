"""Large tables of which `make test` takes one or two cases each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.parity_llm.models import write_models
from tests.ranks import run_ranks
from tests.trainer.counting.ranks.test_clean_runs import RUNS, STRATEGIES, check_clean
from tests.trainer.counting.ranks.test_host_memory import PLACES, check_offloaded
from tests.trainer.counting.ranks.test_operations import CASES, check_scaled
from tests.trainer.counting.ranks.test_state_bytes import DEPTHS, NUMBERS, check_foreseen
from tests.trainer.data.cifar_like import build_cifar_like
from tests.trainer.fine_tuning import Shape, check_every_strategy_fine_tunes
from tests.trainer.parallel.ranks.test_state import PAIRS, SOME, check_pair
from tests.trainer.ranks import test_text_worker
from tests.trainer.ranks.test_text_worker import (
    EVERY,
    LOSS_GATE,
    check_files,
    check_same_training,
    trains_as_alone,
)
from tests.trainer.strategies.moves import go_on, save
from tests.trainer.strategies.ranks.test_state import compare_with_a_whole_run
from tests.trainer.strategies.ranks.test_state_files import compare_with_what_was_saved_by_name
from tests.trainer.strategies.small import GLOBAL_BATCH
from tests.trainer.wire_nd import CASES as MESHES
from tests.trainer.wire_nd import check_formula, measure_all

IMAGES = ("single", "ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3", "zeropp")
SIZES = {"fsdp": 4, "zero2": 4, "zero3": 1}
TEXT: dict[str, tuple[str, int, dict[str, Any]]] = {
    **{name: (name, 0, {}) for name in IMAGES[:-1]},
    "nd pp2": ("nd", 2, {"pp": 2}),
    "nd tp2 dp2": ("nd", 4, {"tp": 2, "dp_shard": 2}),
}
finished = test_text_worker.finished


@pytest.mark.parametrize(("number", "name"), enumerate(NUMBERS))
def test_foreseen_state_is_counted_state(number: int, name: str, tmp_path: Path) -> None:
    check_foreseen(name, DEPTHS[number % len(DEPTHS)], tmp_path)


@pytest.mark.parametrize("case", list(CASES)[1::2])
def test_scaled_is_what_is_counted_whole(case: str, tmp_path: Path) -> None:
    check_scaled(case, tmp_path)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_clean_run_is_marked(strategy: str, tmp_path: Path) -> None:
    check_clean(strategy, RUNS[::2], tmp_path)


@pytest.mark.parametrize(("strategy", "offload"), PLACES[4:])
def test_state_leaves_the_device(strategy: str, offload: str, tmp_path: Path) -> None:
    check_offloaded(strategy, offload, tmp_path)


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair not in SOME])
def test_another_mesh_goes_on(pair: str, tmp_path: Path) -> None:
    check_pair(pair, tmp_path)


@pytest.mark.parametrize("source", IMAGES)
def test_images_go_on_under_every_strategy(source: str, tmp_path: Path) -> None:
    """Every second source with a part of the weights frozen; three targets with other world sizes."""
    case = ("images", "frozen")[IMAGES.index(source) % 2]
    save(tmp_path / source, source, case)
    for target in IMAGES:
        go_on(tmp_path / source, target, case)
    for target, world_size in SIZES.items():
        go_on(tmp_path / source, target, case, world_size)


@pytest.mark.parametrize("source", ["ddp", "fsdp", "zero1", "zero3"])
def test_momentum_and_half_precision_go_on(source: str, tmp_path: Path) -> None:
    for name, settings in (
        ("moving", {"optimizer": "sgd", "momentum": 0.9}),
        # rounded once per micro-batch: its size is that of two ranks also where there is one
        ("bf16", {"precision": "bf16", "micro_batch_size": GLOBAL_BATCH // 4}),
    ):
        save(tmp_path / name, source, "images", **settings)
        for target in ("ddp", "zero3"):
            go_on(tmp_path / name, target, "images", **settings)


@pytest.mark.parametrize("source", TEXT)
def test_decoders_go_on_under_every_strategy(source: str, tmp_path: Path) -> None:
    case = ("tied", "adapters", "experts")[list(TEXT).index(source) % 3]
    strategy, world_size, settings = TEXT[source]
    save(tmp_path / "source", strategy, case, world_size, **settings)
    for target, ranks, degrees in TEXT.values():
        go_on(tmp_path / "source", target, case, ranks, **degrees)


@pytest.mark.parametrize(
    ("strategy", "sizes"),
    [("ddp", (4, 2, 1)), ("hsdp", (2, 4)), ("zero1", (2, 4)), ("zero3", (4, 2, 1)), ("zeropp", (2, 4))],
)
def test_a_run_goes_on_with_another_number_of_processes(
    strategy: str, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    compare_with_a_whole_run(strategy, sizes, tmp_path)


@pytest.mark.parametrize("strategy", ["ddp", "hsdp", "zeropp"])
def test_a_run_goes_on_from_what_the_images_python_has_saved(strategy: str, tmp_path: Path) -> None:
    compare_with_what_was_saved_by_name(strategy, tmp_path)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in test_text_worker.SOME])
def test_a_language_model_runs_under_it(finished: Any, name: str) -> None:
    check_files(finished(name))
    if trains_as_alone(name):
        check_same_training(finished(name), finished("single"), LOSS_GATE if name != "zeropp" else 1e-4)


def test_every_strategy_fine_tunes_the_same_checkpoint(tmp_path: Path) -> None:
    """Of exactly the shape of google/vit-base-patch16-224: 86 million weights."""
    shape, positions = Shape(), 196 - 1  # 14 x 14 in the checkpoint, a single one for images of 16 pixels
    assert shape.body == 85_798_656 - positions * 768
    checkpoint = shape.write(tmp_path / "vit-base-patch16-224")
    data = build_cifar_like(tmp_path / "cifar-like", classes=100, train=100, test=40)
    settings = {"TRAINER_DATASET_PATH": str(data)}
    check_every_strategy_fine_tunes(tmp_path / "results", checkpoint, shape, settings, 100)


def test_every_axis_sends_what_the_formula_says(tmp_path: Path) -> None:
    """Of meshes with several axes; single ones: tests/trainer/ranks."""
    checkpoints, out = tmp_path / "checkpoints", tmp_path / "measured"
    checkpoints.mkdir()
    out.mkdir()
    cases = [case for case in MESHES if len(case.degrees) > 2]
    run_ranks(lambda: write_models(checkpoints), 1)
    measure_all(cases, checkpoints, out)
    for case in cases:
        check_formula(case, checkpoints, out)
