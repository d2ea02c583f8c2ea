"""Runs that several test files look at, trained once."""

import functools
from pathlib import Path

import pytest

from tests.trainer.kept_runs import train


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory):
    """The run directory of a strategy with checkpoints, by the number of ranks. Look, do not touch."""

    @functools.cache
    def of(strategy: str, ranks: int) -> Path:
        return train(tmp_path_factory.mktemp("whole"), strategy, ranks)

    return of
