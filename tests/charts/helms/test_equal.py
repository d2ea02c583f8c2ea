"""Every version of helm renders the same objects: what the other tests say of one helm's holds for all."""

from __future__ import annotations

import pytest

from tests.charts.golden_file import FULL
from tests.charts.rendering import CHARTS, HELMS, find_program, render

FIRST, *OTHERS = HELMS


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", FULL)
def test_a_full_render(name: str, other: str) -> None:
    chart, arguments = FULL[name]
    first, second = (render(find_program(helm), CHARTS / chart, arguments) for helm in (FIRST, other))
    assert first == second
