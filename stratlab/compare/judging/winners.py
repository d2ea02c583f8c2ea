"""Which run is best in what, if that may be said at all. A name not earned is None with its reason."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.compare.judging.noise import Band, build_band
from stratlab.compare.reading.run_rows import is_compared, name_variant
from stratlab.number import fit_unit, format_number

LEAST_LEAD_PCT = (
    2.0  # of a measured number from one repeat: less than runs of the same strategy differ by chance
)
ONE_REPEAT = "one repeat per strategy: there is no confidence interval"
NO_INTERVAL = "; one repeat, so no confidence interval"
NOT_RECORDED = "not recorded by"
ON_CPU = "measured on CPU with gloo: times say nothing about GPUs"


@dataclass(frozen=True)
class Metric:
    """A number that runs are ranked by.

    Attributes:
        key: in the rows of the report; unit: for sentences.
        highest: the highest value is best, else the lowest.
        on_cpu: why nobody is named on a CPU; empty = the number is as good there.
        counted: exact, so that any lead counts; else measured.
        timed: follows from the step times, so that their noise is its noise.
    """

    key: str
    unit: str
    highest: bool
    on_cpu: str = ON_CPU
    counted: bool = False
    timed: bool = False


METRICS = (
    Metric("samples_per_s", "samples per s", highest=True, timed=True),
    Metric("step_time_ms_p50", "ms", highest=False, timed=True),
    Metric("comm_exposed_pct", "% of the step", highest=False),
    Metric("peak_memory_gib", "GiB", highest=False, on_cpu="measured on CPU: there is no device memory"),
    Metric("state_memory_gib", "GiB", highest=False, on_cpu="", counted=True),
)

NAMES = {
    "samples_per_s": "highest throughput",
    "step_time_ms_p50": "shortest step",
    "comm_exposed_pct": "least exposed communication",
    "peak_memory_gib": "lowest peak of device memory",
    "state_memory_gib": "least memory held by the state",
}


def name_winners(
    rows: Sequence[Mapping[str, Any]], fairness: Mapping[str, Any]
) -> tuple[dict[str, str | None], dict[str, str]]:
    """The best run per metric, or None, and the reason for either. Only finished runs that are what their name says.

    Args:
        rows: `runs` of the report.
        fairness: the result of the audit.
    """
    finished = [row for row in rows if is_compared(row)]
    found = {metric.key: _best(metric, finished, fairness) for metric in METRICS}
    return {key: run for key, (run, _) in found.items()}, {key: reason for key, (_, reason) in found.items()}


def name_group_winners(
    rows: Sequence[Mapping[str, Any]], fairness: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The best runs within each group of comparable runs, where not all runs are comparable.

    Returns:
        [{runs: the group, winners, winner_reasons: as `name_winners`}], for groups of two and more.
    """
    found = []
    for group in fairness["groups"] if fairness["verdict"] != "comparable" else []:
        if len(group) < 2:
            continue
        members = [row for row in rows if row["run"] in group]
        winners, reasons = name_winners(members, {"verdict": "comparable"})
        found.append({"runs": group, "winners": winners, "winner_reasons": reasons})
    return found


def _best(
    metric: Metric, rows: Sequence[Mapping[str, Any]], fairness: Mapping[str, Any]
) -> tuple[str | None, str]:
    if fairness["verdict"] != "comparable":
        return None, fairness["reason"]
    if metric.on_cpu and any(row.get("device_type") == "cpu" for row in rows):
        return None, metric.on_cpu
    if metric.key.startswith("comm_") and any(row.get("trace_source") == "cpu" for row in rows):
        return None, "traces without GPU events: their communication says nothing about GPUs"
    silent = [row["run"] for row in rows if row.get(metric.key) is None]
    if silent:
        return None, f"{NOT_RECORDED} {', '.join(silent)}"
    strategies: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        strategies.setdefault(name_variant(row), []).append(row)
    if len(strategies) < 2:
        return None, "all runs are repeats of one strategy"
    sign = -1 if metric.highest else 1
    ranked = sorted(
        strategies.values(), key=lambda repeats: sign * statistics.median(row[metric.key] for row in repeats)
    )
    return _judge(metric, ranked, sign)


def _say(metric: Metric, value: float, other: float | None = None) -> str:
    """With its unit, sizes with one that suits them: `0.72 MiB against 1.25`."""
    factor, unit = fit_unit([value, other]) if metric.unit == "GiB" else (1.0, metric.unit)
    against = f" against {format_number(other * factor)}" if other is not None else ""
    return f"{format_number(value * factor)} {unit}{against}"


def _judge(metric: Metric, ranked: list[list[Mapping[str, Any]]], sign: int) -> tuple[str | None, str]:
    """Best strategy against all others: the repeats must not overlap, and lie further apart than their noise; single
    ones must lead clearly."""
    best = sorted(ranked[0], key=lambda row: sign * row[metric.key])
    rivals = sorted(
        (row for repeats in ranked[1:] for row in repeats), key=lambda row: sign * row[metric.key]
    )
    winner, worst_of_best, second = best[0], best[-1], rivals[0]
    lead = abs(second[metric.key] - worst_of_best[metric.key])
    lead_pct = 100 * lead / max(abs(second[metric.key]), abs(worst_of_best[metric.key]), 1e-30)
    numbers = f"{_say(metric, winner[metric.key], second[metric.key])} of {second['run']}"
    if sign * worst_of_best[metric.key] > sign * second[metric.key]:
        return None, f"the repeats of {winner['run']} and {second['run']} overlap"
    if lead == 0:
        return (
            None,
            f"{winner['run']} and {second['run']} are equal: {_say(metric, winner[metric.key])}",
        )
    if metric.counted:
        return winner["run"], f"{numbers}; counted, exact on any hardware"
    repeats = min(len(group) for group in ranked)
    band = _find_band(metric, ranked)
    if band is None:
        if lead_pct < LEAST_LEAD_PCT:
            return None, f"{numbers}: less than {LEAST_LEAD_PCT:g} % apart, too close for one repeat"
        return winner["run"], numbers + NO_INTERVAL
    mine, other = (statistics.median(row[metric.key] for row in group) for group in ranked[:2])
    noise = band.of_difference(mine, other, len(ranked[0]), len(ranked[1]))
    if abs(mine - other) <= noise:
        return None, f"{numbers}: within the noise of repeats, {_say(metric, noise)}"
    how = (
        f"every one of {repeats} repeats is ahead" if repeats > 1 else "one repeat, but others were repeated"
    )
    return winner["run"], f"{numbers}; {how}, by more than the noise of {format_number(noise)} {metric.unit}"


def _find_band(metric: Metric, ranked: list[list[Mapping[str, Any]]]) -> Band | None:
    """Of the step times over the whole comparison where the number follows from them, else of its own repeats."""
    shares = [
        row["noise_ms"] / row["step_time_ms_p50"] for group in ranked for row in group if row.get("noise_ms")
    ]
    if metric.timed and shares:
        return Band(shares[0], 0, 0)  # one share for all
    return build_band([[row[metric.key] for row in group] for group in ranked])
