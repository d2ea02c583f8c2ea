"""A step of a pipeline by hand: what lies between its stages, and what waits beside it."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratlab.analysis.dividing.calls import CallKey, CallKind, Calls
from stratlab.analysis.dividing.collective_names import POINT_TO_POINT
from stratlab.analysis.dividing.exposure import IDLE, SHARES
from stratlab.analysis.dividing.matching import Match
from stratlab.analysis.dividing.partition import Measured, build_partition
from stratlab.analysis.dividing.segments import Segments
from stratlab.traces.labels import Window

SEND, REDUCE = CallKey(POINT_TO_POINT, "send", "pp"), CallKey("all_reduce", "reduce", "dp_shard")
KINDS = [CallKind(SEND, "0, 1"), CallKind(REDUCE, "0, 2")]


def ns(*values: int) -> Any:
    return np.array(values, np.int64)


def measure() -> tuple[Measured, dict[CallKind, Match]]:
    """100 ns. A send from 10 to 40 with an all-reduce beside it from 20 to 60, which needs 15 on the last rank: the
    send is exposed to 40, the all-reduce behind it, and it waits until 45."""
    segments = Segments([Window(1, 0, 100)], [Window(1, 0, 100)], ns(0), ns(100), ns(0), ns(0))
    exposed = {SEND: (ns(10), ns(40)), REDUCE: (ns(40), ns(60))}
    calls = Calls(0, KINDS, np.array([0, 1], np.int32), ns(10, 20), ns(40, 60), ns(-1, -1))
    times = {name: ns(0) for name in (*SHARES, *IDLE)} | {"comm_exposed": ns(50)}
    matches = {KINDS[1]: Match(ns(15), ns(40), np.array([2], np.int32), ranks=2)}
    return Measured(segments, times, exposed, calls), matches


def test_in_a_pipeline_what_is_exposed_between_stages_is_bubble_and_nothing_else() -> None:
    measured, matches = measure()
    found = build_partition(measured, matches, is_pipeline=True)
    assert (found.times["bubble"], found.times["straggler"]) == (ns(30), ns(5))
    assert found.transfer == {REDUCE: ns(15)}
    whole = found.times["bubble"] + found.times["straggler"] + sum(found.transfer.values())
    assert whole == measured.times["comm_exposed"]


def test_without_a_pipeline_sends_are_transfer_and_waiting() -> None:
    found = build_partition(*measure(), is_pipeline=False)
    assert (found.times["bubble"], found.times["straggler"]) == (ns(0), ns(25))
    assert found.transfer == {SEND: ns(10), REDUCE: ns(15)}
