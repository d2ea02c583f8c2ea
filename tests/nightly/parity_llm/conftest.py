"""The matrix of every case there is."""

from __future__ import annotations

import pytest

from tests.parity_llm.fixtures import continued, faults, folders, report, trained  # noqa: F401
from tests.parity_llm.matrix import FULL, Matrix


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    return FULL
