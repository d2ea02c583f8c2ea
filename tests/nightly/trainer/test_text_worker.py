"""The real worker on a language model, for the strategies that `make test` does not take."""

from __future__ import annotations

import pytest

from tests.trainer.ranks import test_text_worker
from tests.trainer.ranks.test_text_worker import (
    EVERY,
    LOSS_GATE,
    check_files,
    check_same_training,
    trains_as_alone,
)

finished = test_text_worker.finished


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("single", "ddp", "nd pp2")])
def test_a_language_model_runs_under_it_and_trains_the_same(finished, name):
    check_files(finished(name))
    if trains_as_alone(name):
        check_same_training(finished(name), finished("single"), LOSS_GATE if name != "zeropp" else 1e-4)
