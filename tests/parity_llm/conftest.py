"""The matrix that runs on every change."""

import pytest

from tests.parity.suite import Matrix, report  # noqa: F401
from tests.parity_llm.matrix import SMALL, continued, folders, forks, trained  # noqa: F401


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    return SMALL
