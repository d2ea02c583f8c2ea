"""The run directory is complete under strategies that `make test` does not take."""

from __future__ import annotations

import pytest

from tests.trainer.ranks import test_worker
from tests.trainer.ranks.test_worker import CHECKS

finished = test_worker.finished


@pytest.mark.parametrize("strategy", ["hsdp", "zero1", "zero3", "zeropp"])
def test_the_run_directory_is_complete(finished, strategy):
    for check in CHECKS:
        check(finished(strategy))
