from __future__ import annotations

from pathlib import Path

import pytest

from tests.stratlab.compare.longer.test_planted_causes import PLANTS, check


@pytest.mark.parametrize("cause", PLANTS)
def test_every_planted_cause_of_20_teams_is_found(cause: str, tmp_path: Path) -> None:
    check(cause, 20, tmp_path)
