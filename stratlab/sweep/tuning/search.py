"""Coordinate search: one knob at a time, the best is kept. No side effects; the same measurements, the same choice."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.compare.judging.noise import Band, build_band
from stratlab.compare.judging.winners import LEAST_LEAD_PCT

Knobs = Mapping[str, Any]
"""Those in which a candidate differs from the strategy as it comes; empty = as it comes."""


@dataclass(frozen=True)
class Metric:
    """`key`: in the rows of a comparison's report; `unit`: for sentences; `highest`: the highest value is best."""

    key: str
    unit: str
    highest: bool


METRICS = {
    "throughput": Metric("samples_per_s", "samples per s", highest=True),
    "step_time": Metric("step_time_ms_p50", "ms", highest=False),
    "memory": Metric("peak_memory_gib", "GiB", highest=False),
}


@dataclass(frozen=True)
class Measured:
    """What became of a candidate: a value for each of its repeats, or none of them and why."""

    values: tuple[float, ...]
    why: str = ""

    @property
    def value(self) -> float | None:
        return statistics.median(self.values) if self.values else None


@dataclass(frozen=True)
class Lead:
    """How much better one candidate is than another, in percent of the other; `noise_pct` is what chance does."""

    lead_pct: float
    noise_pct: float
    measured_noise: bool
    """Else there are no repeats, and `noise_pct` is what counts as none."""

    @property
    def is_real(self) -> bool:
        return self.lead_pct > self.noise_pct


@dataclass(frozen=True)
class Search:
    """Where a search is: what was tried in order, what is best so far, what to try next; nothing = it has ended."""

    tried: tuple[tuple[Knobs, Measured], ...]
    best: Knobs
    following: tuple[Knobs, ...]
    not_tried: tuple[Knobs, ...] = ()
    """Values, each alone, for which no candidate was left."""


def name_knobs(knobs: Knobs) -> str:
    """Equal for equal knobs, whatever their order."""
    return ",".join(f"{name}={_word(knobs[name])}" for name in sorted(knobs))


def search(
    values: Mapping[str, Sequence[Any]],
    measured: Mapping[str, Measured],
    most: int,
    metric: Metric,
) -> Search:
    """Follows a search as far as it is measured. The noise is that of the repeats of what was tried by then.

    Args:
        values: knob -> what to try of it, in the order of the search.
        measured: `name_knobs` of a candidate -> what became of it; a candidate that is not in it was not run yet.
        most: candidates in all.
    """
    tried: list[tuple[Knobs, Measured]] = []
    left_out: list[Knobs] = []
    best: Knobs = {}
    if "" not in measured:
        return Search((), best, ({},))
    tried.append(({}, measured[""]))
    for knob, options in values.items():
        room = most - len(tried)
        left_out += [{knob: option} for option in options[room:]]
        asked = [{**best, knob: option} for option in options[:room]]
        if unknown := tuple(each for each in asked if name_knobs(each) not in measured):
            return Search(tuple(tried), best, unknown)
        tried += [(each, measured[name_knobs(each)]) for each in asked]
        band = find_band(tried)
        results = {name_knobs(each): result for each, result in tried}
        for each in asked:
            lead = compute_lead(results[name_knobs(each)], results[name_knobs(best)], metric, band)
            if lead is None:
                better = (
                    results[name_knobs(each)].value is not None and results[name_knobs(best)].value is None
                )
            else:
                better = lead.is_real
            best = each if better else best
    return Search(tuple(tried), best, (), tuple(left_out))


def find_band(tried: Sequence[tuple[Knobs, Measured]]) -> Band | None:
    """How far repeats of one candidate lie apart; None without repeats."""
    return build_band([measured.values for _, measured in tried])


def compute_lead(one: Measured, other: Measured, metric: Metric, band: Band | None) -> Lead | None:
    """How much better `one` is than `other`; None where one of them has no value. Of 0 there is no share: what is not 0
    is 100 % better or worse.

    Without repeats a lead below 2 % counts as none, as in a comparison (compare/judging/winners.py).
    """
    mine, theirs = one.value, other.value
    if mine is None or theirs is None:
        return None
    sign = 1 if metric.highest else -1
    whole = abs(theirs) or abs(mine) or 1.0
    lead_pct = sign * 100 * (mine - theirs) / whole
    if band is None:
        return Lead(lead_pct, LEAST_LEAD_PCT, measured_noise=False)
    noise = band.of_difference(mine, theirs, len(one.values), len(other.values))
    return Lead(lead_pct, 100 * noise / whole, measured_noise=True)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
