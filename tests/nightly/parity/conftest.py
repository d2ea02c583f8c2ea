"""The matrix of every case there is."""

import pytest

from tests.parity.matrix import FULL, references, trained  # noqa: F401
from tests.parity.suite import Matrix, report  # noqa: F401


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    return FULL
