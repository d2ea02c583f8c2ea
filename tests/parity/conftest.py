"""The matrix that runs on every change."""

import pytest

from tests.parity.matrix import SMALL, references, trained  # noqa: F401
from tests.parity.suite import Matrix, report  # noqa: F401


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    return SMALL
