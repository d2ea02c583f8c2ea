"""The run directory of every strategy that trains images is complete."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.trainer.ranks import test_worker
from tests.trainer.ranks.test_worker import CHECKS
from trainer.settings.fields import Strategy

finished = test_worker.finished


@pytest.mark.parametrize("strategy", [name for name in get_args(Strategy) if name != "nd"])
def test_the_run_directory_is_complete(finished, strategy):
    for check in CHECKS:
        check(finished(strategy))
