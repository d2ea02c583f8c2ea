"""Every supported version of helm."""

from pathlib import Path

import pytest

from tests.charts.rendering import HELMS, find_program


@pytest.fixture(scope="session", params=HELMS)
def helm(request: pytest.FixtureRequest) -> Path:
    return find_program(request.param)
