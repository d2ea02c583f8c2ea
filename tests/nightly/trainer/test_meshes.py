"""Checkpoints of one mesh read by another: the pairs that `make test` does not take."""

from __future__ import annotations

import pytest

from tests.trainer.parallel.ranks.test_state import PAIRS, SOME, check_pair


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair not in SOME])
def test_another_mesh_goes_on(pair, tmp_path):
    check_pair(pair, tmp_path)
