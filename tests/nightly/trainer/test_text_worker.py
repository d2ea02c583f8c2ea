"""The real worker on a language model, for every strategy."""

from __future__ import annotations

import pytest

from tests.trainer.ranks import test_text_worker
from tests.trainer.ranks.test_text_worker import (
    EVERY,
    LOSS_GATE,
    check_files,
    check_layout,
    check_same_training,
    trains_as_alone,
)

finished = test_text_worker.finished


@pytest.mark.parametrize("name", EVERY)
def test_a_language_model_runs_under_it(finished, name):
    check_files(finished(name))


@pytest.mark.parametrize("name", [name for name in EVERY if trains_as_alone(name)])
def test_every_strategy_trains_the_same(finished, name):
    check_same_training(finished(name), finished("single"), LOSS_GATE if name != "zeropp" else 1e-4)


@pytest.mark.parametrize("name", ["nd", "nd pp2", "nd tp2"])
def test_the_layout_is_recorded(finished, name):
    check_layout(finished(name), name)
