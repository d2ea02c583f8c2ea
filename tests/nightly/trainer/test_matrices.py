"""Strategies, layouts and meshes of which `make test` takes some."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stratlab_spec.layout.nd_layout import resolve_layout
from tests.parity_llm.cases import Case
from tests.parity_llm.models import write_models
from tests.ranks import run_ranks
from tests.trainer.data.pictures import build_cifar_like
from tests.trainer.fine_tuning import Shape, check_every_strategy_fine_tunes
from tests.trainer.ranks import test_text_worker
from tests.trainer.ranks.test_decoder_memory import DENSE, MOE, compare, config, narrowed
from tests.trainer.ranks.test_text_worker import (
    EVERY,
    LOSS_GATE,
    check_files,
    check_same_training,
    trains_as_alone,
)
from tests.trainer.wire_nd import CASES, check_formula, measure_all
from tests.trainer.wire_runs import CHOSEN, Found, Run, check, measure_together
from tests.trainer.wire_runs import EVERY as RUNS

TAKEN = ("single", "ddp", "nd pp2")
OTHER_RUNS = sorted(RUNS - {*CHOSEN}, key=lambda run: run.file)[::5]
"""Every fifth: what only one run shows is among the chosen."""
AXES = (
    (Case("tied", strategy="ddp", world=2), {"dp_replicate"}),
    (Case("tied", strategy="fsdp", world=2), {"dp_shard"}),
    (Case("tied", strategy="zero2", world=2), {"dp_shard"}),
    (Case("tied", "rep2.dp2", strategy="hsdp"), {"dp_replicate", "dp_shard"}),
)
finished = test_text_worker.finished


@pytest.mark.parametrize("name", [name for name in EVERY if name not in TAKEN])
def test_a_language_model_runs_under_it_and_trains_the_same(finished: Any, name: str) -> None:
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


@pytest.fixture(scope="module")
def read_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Run], Found]:
    return measure_together(OTHER_RUNS, tmp_path_factory.mktemp("wire"))


@pytest.mark.parametrize("run", OTHER_RUNS, ids=lambda run: run.file)
def test_a_step_sends_what_the_formula_says(run: Run, read_run: Callable[[Run], Found]) -> None:
    check(run, read_run(run))


def test_every_axis_sends_what_the_formula_says(tmp_path: Path) -> None:
    """Of meshes with several axes; single ones: tests/trainer/ranks."""
    checkpoints, out = tmp_path / "checkpoints", tmp_path / "measured"
    checkpoints.mkdir()
    out.mkdir()
    run_ranks(lambda: write_models(checkpoints), 1)
    meshes = [case for case in CASES if len(case.degrees) > 1]
    measure_all([*meshes, *(case for case, _ in AXES)], checkpoints, out)
    for case in meshes:
        check_formula(case, checkpoints, out)
    for case, axes in AXES:
        for rank in range(case.world_size):
            assert json.loads((out / f"{case.name} {rank}.json").read_text()).keys() == axes, case.name


def list_layouts() -> Iterator[tuple[Any, int, Any]]:
    """Every layout that is chosen for 1 to 32 processes, once."""
    seen = set()
    for model, dimensions in ((DENSE, (1, 2, 3, 4)), (MOE, (1, 4, 5))):
        for processes in (1, 2, 3, 4, 6, 8, 12, 16, 32):
            for number in dimensions:
                chosen = config(model, dimensions=number)
                name = resolve_layout(chosen, processes, narrowed(model)).name
                if (model, processes, name) not in seen:
                    seen.add((model, processes, name))
                    yield chosen, processes, narrowed(model)


def test_a_rank_holds_what_is_promised_of_every_chosen_layout_at_the_published_widths() -> None:
    cases = list(list_layouts())
    assert len(cases) > 40
    run_ranks(lambda: compare(cases), 1, timeout_s=300)
