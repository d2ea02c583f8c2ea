"""The matrix of every case there is."""

import pytest

from tests.parity.suite import Matrix, report  # noqa: F401
from tests.parity_llm.matrix import FULL, continued, folders, forks, trained  # noqa: F401


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    return FULL
