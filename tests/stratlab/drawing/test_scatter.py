from __future__ import annotations

import itertools
import math
import xml.etree.ElementTree as ET

from markupsafe import Markup

from stratlab.drawing import scatter

POINTS = {"ddp": (40.0, 900.0), "zero2": (20.0, 800.0), "zero3": (12.0, 500.0), "slow": (30.0, 400.0)}


def _dots(chart: Markup) -> dict[str, ET.Element]:
    root = ET.fromstring(chart[chart.index("<svg ") : chart.index("</svg>") + 6])
    return {(t.text or "").split(":")[0]: c for c in root.iter("circle") for t in c.iter("title")}


def test_dots_lie_where_their_numbers_say_and_the_front_is_joined_in_order() -> None:
    chart = scatter(POINTS, "GiB", "samples per s", front=("ddp", "zero3", "zero2"))
    dots = _dots(chart)
    at = {name: (float(dot.get("cx", 0)), float(dot.get("cy", 0))) for name, dot in dots.items()}
    assert at["zero3"][0] < at["zero2"][0] < at["slow"][0] < at["ddp"][0]
    assert at["ddp"][1] < at["zero2"][1] < at["zero3"][1] < at["slow"][1]  # up is more
    assert {name: dot.get("class") for name, dot in dots.items()} == {
        **dict.fromkeys(("ddp", "zero2", "zero3"), "f0"),
        "slow": "f7",
    }
    (path, _) = ET.fromstring(chart).iter("path")
    corners = [tuple(map(float, piece.split())) for piece in path.get("d", "")[1:].split("L")]
    assert corners == [at["zero3"], at["zero2"], at["ddp"]]
    assert "ddp: 900.0 samples per s at 40.0 GiB" in chart


def test_names_do_not_cover_each_other_and_stay_inside() -> None:
    points = {f"strategy number {i}": (40.0, 900.0 + i) for i in range(5)} | {"first": (0.0, 0.0)}
    drawings = list(ET.fromstring(scatter(points, "x", "y")).iter("svg"))
    assert [drawing.get("viewBox", "").split()[2] for drawing in drawings] == ["920", "360"]
    for drawing in drawings:
        names = [t for t in drawing.iter("text") if (t.text or "").startswith("strategy")]
        levels = sorted(float(t.get("y", 0)) for t in names)
        assert all(b - a >= 14.9 for a, b in itertools.pairwise(levels))
        assert {t.get("text-anchor") for t in names} == {"end"}  # at the right edge


def test_what_is_not_known_is_left_out_and_named() -> None:
    chart = scatter({**POINTS, "cpu": (None, 3.0), "broken": (1.0, math.nan)}, "GiB", "samples per s")
    assert set(_dots(chart)) == set(POINTS) and "cpu, broken" in chart and "<path" not in chart, (
        "no front, no line"
    )
    assert "<svg" not in scatter({"a": (None, 1.0)}, "x", "y")
    assert set(_dots(scatter({"only": (5.0, 5.0)}, "x", "y", front=("only",)))) == {"only"}
