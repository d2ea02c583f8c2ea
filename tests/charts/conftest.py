"""One helm, but in helms/."""

import pytest

pytest.register_assert_rewrite("tests.charts.rendering", "tests.charts.contract")  # before their import

from tests.charts.rendering import HELMS, find_program  # noqa: E402


@pytest.fixture(scope="session")
def helm():
    return find_program(HELMS[0])
