from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratlab.drawing.canvas import WIDTH, Scale, format_tick, legend, log_ticks, row_label, ticks


def test_ticks_are_round() -> None:
    known = {
        (0, 10): [0, 2, 4, 6, 8, 10],
        (97, 103): [98, 100, 102],
        (-1, 1): [-1, -0.5, 0, 0.5, 1],
        (5, 5): [5],
    }
    for (low, high), expected in known.items():
        assert ticks(low, high) == pytest.approx(expected)
    assert log_ticks(0.5, 2000) == pytest.approx([1, 10, 100, 1000])
    assert log_ticks(0.3, 4) == pytest.approx([0.5, 1, 2])
    shown = {0: "0", 0.2: "0.2", 1500: "1,500", 100: "100", 2e7: "2e+07", 2e-5: "2e-05"}
    assert {value: format_tick(value) for value in shown} == shown


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_inside_and_neither_few_nor_many(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert 2 <= len(found) <= 8
    assert low - 1e-9 * abs(low) - 1e-6 * span <= found[0] and found[-1] <= low + span * (1 + 1e-6) + 1e-9


def test_a_scale_is_linear_or_logarithmic() -> None:
    assert Scale(0, 10, 100, 200)(5) == 150
    assert Scale(1, 100, 100, 200, log=True)(10) == pytest.approx(150)
    assert Scale(3, 3, 100, 200)(3) == 150


def test_a_long_legend_wraps_inside_the_chart() -> None:
    keys, height = legend([f"a strategy with a long name {i}" for i in range(12)], 64)
    assert height > 40
    assert max(float(part.split('"')[0]) for part in keys.split('<text x="')[1:]) < WIDTH


def test_a_long_label_is_cut_and_whole_in_the_tooltip() -> None:
    name = "n" * 100
    label = row_label(name, 10, 100)
    assert f"<title>{name}</title>" in label
    assert "nn…</text>" in label
