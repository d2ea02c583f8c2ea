from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest
from markupsafe import Markup

from stratlab.drawing import histogram

EDGES = [1.0, 10.0, 100.0, 1000.0, 10000.0]


def _bars(chart: Markup) -> dict[str, ET.Element]:
    root = ET.fromstring(chart)
    return {
        t.text or "": bar for bar in root.iter("rect") for t in bar.iter("title")
    }  # the keys have no title


def test_a_decade_is_as_wide_as_any_other_and_classes_stand_on_each_other() -> None:
    chart = histogram(EDGES, {"compute": [0, 40, 20, 0], "copy": [0, 10, 0, 0]}, "duration (us)")
    bars = _bars(chart)
    assert list(bars) == [
        "compute, 10.0 to 100.0: 40",
        "copy, 10.0 to 100.0: 10",
        "compute, 100.0 to 1,000: 20",
    ]
    first, copy, second = bars.values()
    assert float(first.get("width", 0)) == pytest.approx(float(second.get("width", 0)), abs=0.02)
    assert float(first.get("height", 0)) == pytest.approx(2 * float(second.get("height", 0)), abs=0.05)
    end = float(copy.get("y", 0)) + float(copy.get("height", 0))
    assert end == pytest.approx(float(first.get("y", 0)), abs=0.05)
    assert (first.get("class"), copy.get("class")) == ("f0", "f1")
    numbers = {element.text for element in ET.fromstring(chart).iter("text")}
    assert {"10", "100", "1,000"} <= numbers and "10,000" not in numbers  # empty ends are cut off


def test_names_keep_the_colour_that_they_are_given_and_unused_ones_no_key() -> None:
    chart = histogram(EDGES, {"comm": [0, 0, 0, 0], "copy": [1, 0, 0, 0]}, "us", colours={"copy": 2})
    root = ET.fromstring(chart)
    assert {rect.get("class") for rect in root.iter("rect")} == {"f2"}
    assert "comm" not in {element.text for element in root.iter("text")}


def test_zero_and_infinity_as_outer_edges_are_drawn() -> None:
    bars = _bars(histogram([0.0, 1.0, 10.0, math.inf], {"k": [3, 3, 3]}, "us"))
    widths = {round(float(bar.get("width", 0)), 1) for bar in bars.values()}
    assert len(bars) == 3 and len(widths) == 1


def test_nothing_to_draw_is_said() -> None:
    for chart in (histogram(EDGES, {"k": [0, 0, 0, 0]}, "us"), histogram([], {}, "us")):
        assert "<svg" not in chart and "us" in chart
