"""Every supported version of helm."""

import pytest

from tests.charts.rendering import HELMS, find_program


@pytest.fixture(scope="session", params=HELMS)
def helm(request):
    return find_program(request.param)
