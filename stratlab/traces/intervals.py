"""Interval arithmetic on numpy arrays: union, clip, common length, covered share per bin.

An interval set is a pair of float64 arrays (starts, ends) in us. `build_union` makes a set sorted and
disjoint; the other functions expect such a set. Equal to Holistic Trace Analysis on its own rules (tests),
without pandas.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]
Intervals = tuple[Times, Times]


def build_union(starts: Times, ends: Times) -> Intervals:
    """Sorted, disjoint intervals that cover the same time; neighbours that touch become one."""
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    opens = np.ones(len(starts), bool)
    opens[1:] = starts[1:] > reach[:-1]
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(starts)) - 1
    return starts[first], reach[last]


def join(a: Intervals, b: Intervals) -> Intervals:
    """The union of two sets."""
    return build_union(np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]]))


def clip(a: Intervals, low: float, high: float) -> Intervals:
    """The part of `a` inside [low, high]."""
    inside = (a[1] > low) & (a[0] < high)
    return np.maximum(a[0][inside], low), np.minimum(a[1][inside], high)


def length(a: Intervals) -> float:
    """Covered time, us."""
    return float((a[1] - a[0]).sum())


def covered_until(a: Intervals, at: Times) -> Times:
    """Covered time of `a` left of each point of `at`, us; `at` need not be sorted."""
    starts, ends = a
    if not len(starts):
        return np.zeros(len(at))
    before = np.concatenate([[0.0], np.cumsum(ends - starts)])
    index = np.searchsorted(starts, at, side="right")
    beyond = np.where(index > 0, np.maximum(0.0, ends[np.maximum(index - 1, 0)] - at), 0.0)
    return np.asarray(before[index] - beyond)


def common_length(a: Intervals, b: Intervals) -> float:
    """Time covered by both sets, us."""
    return float((covered_until(b, a[1]) - covered_until(b, a[0])).sum())


def build_covered_share(a: Intervals, low: float, high: float, bins: int) -> Times:
    """Covered share (0 to 1) of each of `bins` equal parts of [low, high]: what a timeline draws."""
    edges = np.linspace(low, high, bins + 1)
    return np.diff(covered_until(a, edges)) / np.diff(edges)
