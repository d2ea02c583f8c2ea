"""The matrix of every case there is."""

from __future__ import annotations

import pytest

from tests.parity.fixtures import faults, references, report, trained  # noqa: F401
from tests.parity.matrix import FULL, Matrix


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    return FULL
