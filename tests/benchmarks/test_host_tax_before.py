"""The interval of a difference, by hand."""

from __future__ import annotations

import pytest

from benchmarks.host_tax_before import interval


def test_three_turns_by_hand() -> None:
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert (low, high) == (pytest.approx(2 - 4.30 / 3**0.5), pytest.approx(2 + 4.30 / 3**0.5))
