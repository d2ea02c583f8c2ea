"""Who is best in what, beyond the noise of repeats, for which goal, and on which front."""

import random

import pytest

from stratlab.compare.winners import build_band, build_pareto
from tests.stratlab.compare.building import build_bare_row


def test_a_band_by_hand():
    """Values 99 and 101: relative deviations 0.01, one degree of freedom, t = 12.706."""
    band = build_band([[99.0, 101.0], [50.0]])
    assert band and (band.degrees, band.repeats) == (1, 2)
    assert band.relative == pytest.approx(12.706 * (2 * 0.01**2) ** 0.5)
    assert band.of_difference(3.0, 4.0) == pytest.approx(5 * band.relative)
    assert band.of_difference(3.0, 4.0, 4, 4) == pytest.approx(2.5 * band.relative)
    assert band.of_difference(3.0, 4.0, 9, 1) == pytest.approx(17**0.5 * band.relative)
    assert build_band([[1.0], [2.0]]) is None and build_band([]) is None


@pytest.mark.parametrize("repeats", [2, 5])
def test_a_difference_by_chance_is_inside_the_band_95_times_in_100(repeats):
    draw, inside = random.Random(repeats), 0
    for _ in range(2000):
        groups = [[draw.gauss(100.0, 2.0) for _ in range(repeats)] for _ in range(2)]
        a, b = (sum(group) / repeats for group in groups)
        band = build_band(groups)
        inside += abs(a - b) <= (band.of_difference(a, b, repeats, repeats) if band else 0)
    assert 0.935 < inside / 2000 < 0.965


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ({"a": (1.0, 10.0), "b": (2.0, 10.0)}, ["a"]),  # as fast with more memory
        ({"a": (1.0, 10.0), "b": (1.0, 10.0)}, ["a", "b"]),  # equals do not beat each other
        ({"a": (3.0, 10.0), "b": (1.0, 5.0), "c": (2.0, 4.0), "d": (2.5, 7.0)}, ["b", "d", "a"]),
    ],
)
def test_fronts_by_hand(points, front):
    rows = [
        build_bare_row(run, peak_memory_gib=memory, samples_per_s=speed, device_type="cuda")
        for run, (memory, speed) in points.items()
    ]
    (entry,) = build_pareto(rows, [list(points)])
    assert entry["front"] == front
