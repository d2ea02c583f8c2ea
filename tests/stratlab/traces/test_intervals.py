"""Interval arithmetic against unit cells counted one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratlab.traces.intervals import (
    Intervals,
    build_covered_share,
    build_union,
    clip,
    common_length,
    covered_until,
    covered_within,
    intersect,
    join,
    length,
    subtract,
)

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=15)


def build(spans: list[tuple[int, int]]) -> tuple[Intervals, set[int]]:
    """The set, and the unit cells that it covers."""
    starts = np.array([start for start, _ in spans], np.int64)
    ends = np.array([start + size for start, size in spans], np.int64)
    return build_union(starts, ends), {cell for start, size in spans for cell in range(start, start + size)}


@given(SPANS)
def test_union_is_sorted_disjoint_and_covers_the_same_cells(spans: list[tuple[int, int]]) -> None:
    (starts, ends), cells = build(spans)
    assert length((starts, ends)) == len(cells)
    assert (starts[1:] > ends[:-1]).all()


@given(SPANS, SPANS)
def test_common_length_and_join(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    (a, cells_a), (b, cells_b) = build(one), build(other)
    assert common_length(a, b) == common_length(b, a) == len(cells_a & cells_b)
    assert length(join(a, b)) == len(cells_a | cells_b)


@given(SPANS, SPANS)
def test_difference_and_intersection(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    (a, cells_a), (b, cells_b) = build(one), build(other)
    for found, cells in ((subtract(a, b), cells_a - cells_b), (intersect(a, b), cells_a & cells_b)):
        inside = [cell for low, high in zip(*found, strict=True) for cell in range(low, high)]
        assert sorted(cells) == inside  # sorted, disjoint, the same cells
    assert covered_within(a, *b).sum() == len(cells_a & cells_b)


@given(SPANS, st.integers(0, 30), st.integers(1, 40))
def test_clip_and_covered_until(spans: list[tuple[int, int]], low: int, size: int) -> None:
    a, cells = build(spans)
    assert length(clip(a, low, low + size)) == len(cells & set(range(low, low + size)))
    assert covered_until(a, np.array([low + size, low])).tolist() == [
        len({cell for cell in cells if cell < at}) for at in (low + size, low)
    ]


@given(SPANS)
def test_covered_share_sums_to_the_length(spans: list[tuple[int, int]]) -> None:
    a, cells = build(spans)
    share = build_covered_share(a, 0, 80, 40)
    assert share.sum() * 80 / 40 == pytest.approx(len(cells))
    assert ((share >= 0) & (share <= 1)).all()
