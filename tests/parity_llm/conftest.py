"""The matrix that runs on every change."""

from __future__ import annotations

import pytest

from tests.parity_llm.fixtures import continued, faults, folders, report, trained  # noqa: F401
from tests.parity_llm.matrix import SMALL, Matrix


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    return SMALL
