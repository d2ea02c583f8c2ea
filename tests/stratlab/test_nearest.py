"""What a name that is not known is answered with."""

from __future__ import annotations

import pytest

from stratlab.nearest import FEW, NEAREST, name_allowed

MANY = [f"run-{number}" for number in range(FEW + 1)]


def test_a_short_list_is_told_whole() -> None:
    told = name_allowed("run-x", MANY[:FEW], "expected one of", "in the file")
    assert told.endswith(f"expected one of {', '.join(MANY[:FEW])}") and "in the file" not in told


def test_of_a_long_list_the_nearest_are_told_and_where_all_are() -> None:
    told = name_allowed("run-x", MANY, "expected one of", "in the file")
    assert told.endswith(f"? expected one of the {len(MANY)} in the file")
    assert 2 <= sum(name in told.replace("?", " ").replace(",", " ").split() for name in MANY) <= NEAREST


@pytest.mark.parametrize("names", [MANY, MANY[:2]])
def test_what_is_like_nothing_gets_no_question(names: list[str]) -> None:
    assert name_allowed("banana", names, "expected one of", "in the file").startswith("expected one of ")
