"""Two processes with synchronised batch norm are one process, in fp64, and a mistake in what they exchange is seen."""

import json
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.image_models.cell import Cell
from tests.image_models.found import EXACT_FILE, EXACT_NORM_PARITY, EXACT_PARITY, Found, measure_exact_parity
from tests.image_models.running import train_exactly

MODEL = "mobilenet_synchronised"
NOTHING = Found({}, (), (), 0, 0, (0, 0), 0, 0.0)
FINEST = 1e-10


def run(strategy: str, folder: Path, **options: Any) -> Found:
    assert train_exactly(Cell(MODEL, strategy), folder, **options) == ""
    exact = json.loads((folder / EXACT_FILE).read_text())
    return replace(NOTHING, exact_losses=tuple(exact["losses"]), exact_norms=tuple(exact["norms"]))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run("single", tmp_path_factory.mktemp("single"))


def of_layers(name: str, instead: Any) -> AbstractContextManager[Any]:
    """In what the layers exchange alone: `dist` is a name of their module."""
    from trainer.models import batch_norm as room

    return mock.patch.object(room, "dist", mock.Mock(wraps=room.dist, **{name: instead}))


def no_sums() -> AbstractContextManager[Any]:
    """Each rank goes back through the statistics with its own sums."""
    return of_layers("all_reduce", lambda sums: sums.mul_(2))


def no_statistics() -> AbstractContextManager[Any]:
    return of_layers("all_gather", lambda gathered, own: [each.copy_(own) for each in gathered])


def test_two_processes_are_one(single, tmp_path):
    losses, norms = measure_exact_parity(run("ddp", tmp_path), single)
    assert losses < FINEST and norms < FINEST


@pytest.mark.parametrize("plant", [no_sums, no_statistics])
def test_a_mistake_is_beyond_the_gates(plant, single, tmp_path):
    losses, norms = measure_exact_parity(run("ddp", tmp_path, plant=plant), single)
    assert losses > 10 * EXACT_PARITY and norms > 10 * EXACT_NORM_PARITY, (losses, norms)
