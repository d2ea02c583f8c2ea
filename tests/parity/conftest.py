"""The matrix that runs on every change."""

from __future__ import annotations

import pytest

from tests.parity.fixtures import faults, references, report, trained  # noqa: F401
from tests.parity.matrix import SMALL, Matrix


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    return SMALL
