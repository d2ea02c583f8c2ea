"""How the first lines of a comparison tell what was measured."""

from __future__ import annotations

import pytest

from stratlab.compare.showing.verdict import either


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (8, "8"),
        ([2, 4], "2 / 4"),
        ([1, 5, 3, 4, 9], "1 to 9"),
        (["a", "b", "c", "d", "e"], "a / b / c / d / e"),
    ],
)
def test_of_many_numbers_the_range_is_told(value: object, said: str) -> None:
    assert either(value) == said
