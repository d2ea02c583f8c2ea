"""Find the best run by each measure, if it can be named. None stands for a name that is not earned, with its reason.

Band, build_noise     the distance of repeats by chance: a larger difference is a result.
name_winners          the best run in each of METRICS, over all runs or within groups of comparable runs.
build_pareto          memory against throughput: runs that no other run exceeds in both.
build_goals           the best run for a goal: fastest, least memory, fastest that fits.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from stratlab import UserError
from stratlab.compare.fairness import Fairness
from stratlab.compare.run_rows import Rows, RunRow
from stratlab.wording import fit_unit, format_number

# Student's t, two-sided 95 %, by degrees of freedom: a table of every textbook
T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
Z_95 = 1.96
METHOD = "pooled standard deviation of the repeats' values, relative to their mean, times Student's t (95 %)"
NO_BAND = "one repeat: no band"
LEAST_LEAD_PCT = 2.0
"""Percent of a measured number from one repeat: runs of the same strategy differ by less by chance."""
ONE_REPEAT = "one repeat per strategy: there is no confidence interval"
NO_INTERVAL = "; one repeat, so no confidence interval"
NOT_RECORDED = "not recorded by"
ON_CPU = "measured on CPU with gloo: times say nothing about GPUs"
NO_PEAK = "measured on CPU: there is no device memory"
MEMORIES = {
    "peak_memory_gib": "peak of device memory per rank",
    "state_memory_gib": "memory held by the state per rank (no device peak was recorded by all)",
}


@dataclass(frozen=True)
class Band:
    """The scatter of one more repeat.

    Attributes:
        relative: half width of the band around one run, as a share of its value.
        degrees: of freedom: repeats minus groups, over all groups with at least two.
        repeats: number of values.
    """

    relative: float
    degrees: int
    repeats: int

    def of_difference(self, a: float, b: float, repeats_a: int = 1, repeats_b: int = 1) -> float:
        """Return half width of the band around a - b; with repeats: of the difference of their means."""
        return self.relative * math.sqrt(a * a / repeats_a + b * b / repeats_b)


def build_band(groups: Sequence[Sequence[float]]) -> Band | None:
    """Pool the spread of all groups of repeats; None without any repeat.

    Slow and fast runs are assumed to spread equally in relation to their value.

    Args:
        groups: the values of the repeats, one group for each repeated thing; single ones do not count.
    """
    repeated = [list(group) for group in groups if len(group) > 1 and statistics.fmean(group) > 0]
    degrees = sum(len(group) - 1 for group in repeated)
    if not degrees:
        return None
    squares = sum(sum((value / statistics.fmean(group) - 1) ** 2 for value in group) for group in repeated)
    return Band(get_t_95(degrees) * math.sqrt(squares / degrees), degrees, sum(map(len, repeated)))


def get_t_95(degrees: int) -> float:
    """Return Student's t, two-sided 95 %; beyond the table at most 1 % too large."""
    return T_95[degrees - 1] if degrees <= len(T_95) else Z_95 + 2.5 / degrees


def build_noise(rows: Rows, variants: Sequence[Sequence[str]]) -> tuple[Band | None, dict[str, Any]]:
    """Return the band of the median step times, and the report's facts about repeats.

    Returns:
        the band, and {method, relative_pct (half width, None without repeats), degrees, repeats (number of runs),
        variants, noise_ms}. variants are [[runs that are repeats of each other]], noise_ms is run -> half width of
        the band around its median step.
    """
    timed = [row for row in rows if row.status == "finished"]
    steps = {row.run: row.step_time_ms_p50 for row in timed if row.step_time_ms_p50}
    band = build_band([[steps[name] for name in names if name in steps] for names in variants])
    return band, {
        "method": METHOD if band else NO_BAND,
        "relative_pct": 100 * band.relative if band else None,
        "degrees": band.degrees if band else 0,
        "repeats": band.repeats if band else 0,
        "variants": [list(names) for names in variants],
        "noise_ms": {run: band.relative * ms if band else None for run, ms in steps.items()},
    }


@dataclass(frozen=True)
class Metric:
    """A number by which runs are ranked.

    Attributes:
        key: in the rows of the report; name: of its best run; unit: for sentences.
        highest: the highest value is best, else the lowest.
        on_cpu: why no run is named on a CPU; empty = the number is as good there.
        counted: exact, so that any lead counts; else measured.
        timed: follows from the step times, so that their noise is its noise.
    """

    key: str
    name: str
    unit: str
    highest: bool
    on_cpu: str = ON_CPU
    counted: bool = False
    timed: bool = False


METRICS = (
    Metric("samples_per_s", "highest throughput", "samples per s", highest=True, timed=True),
    Metric("step_time_ms_p50", "shortest step", "ms", highest=False, timed=True),
    Metric("comm_exposed_pct", "least exposed communication", "% of the step", highest=False),
    Metric("peak_memory_gib", "lowest peak of device memory", "GiB", highest=False, on_cpu=NO_PEAK),
    Metric(
        "state_memory_gib", "least memory held by the state", "GiB", highest=False, on_cpu="", counted=True
    ),
)
BY_KEY = {metric.key: metric for metric in METRICS}


@dataclass(frozen=True)
class Winner:
    """The best configuration by a metric: a run, or the name of its repeats; None = none is named. `reason`: why."""

    metric: Metric
    run: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.metric.name}: {self.run}"


def name_winners(rows: Rows, why_nobody: str = "") -> list[Winner]:
    """Return the winner of each metric, only among finished runs that are not degenerate.

    Args:
        rows: `runs` of the report, or of one of its groups.
        why_nobody: why they are not comparable; "" = they are.
    """
    compared = [row for row in rows if row.is_compared]
    return [Winner(each, *((None, why_nobody) if why_nobody else _best(each, compared))) for each in METRICS]


def name_group_winners(rows: Rows, fairness: Fairness) -> dict[tuple[str, ...], list[Winner]]:
    """The best within each group of comparable runs that are not only repeats, where not all runs are comparable."""
    groups = [] if fairness.is_comparable else fairness.groups
    members = {tuple(group): [row for row in rows if row.run in group] for group in groups}
    return {
        group: name_winners(of_group)
        for group, of_group in members.items()
        if len({row.configuration for row in of_group}) > 1
    }


def write_winners(winners: Sequence[Winner]) -> dict[str, Any]:
    """Return the winners in the form of report.json."""
    return {
        "winners": {each.metric.key: each.run for each in winners},
        "winner_reasons": {each.metric.key: each.reason for each in winners},
    }


def read_winners(report: Mapping[str, Any]) -> list[Winner]:
    """Return the winners of report.json, or of one of its groups."""
    reasons = report["winner_reasons"]
    return [Winner(BY_KEY[key], run, reasons[key]) for key, run in report["winners"].items()]


def list_best(winners: Sequence[Winner]) -> str:
    """Return `shortest step: ddp, least memory held by the state: fsdp`; "" without winners."""
    return ", ".join(str(each) for each in winners if each.run)


def _best(metric: Metric, rows: Rows) -> tuple[str | None, str]:
    values = {row.run: getattr(row, metric.key) for row in rows}
    if metric.on_cpu and any(row.device_type == "cpu" for row in rows):
        return None, metric.on_cpu
    if metric.key.startswith("comm_") and any(row.trace_source == "cpu" for row in rows):
        return None, "traces without GPU events: their communication says nothing about GPUs"
    if silent := [run for run, value in values.items() if value is None]:
        return None, f"{NOT_RECORDED} {', '.join(silent)}"
    strategies: dict[str, list[RunRow]] = {}
    for row in rows:
        strategies.setdefault(row.configuration, []).append(row)
    if len(strategies) < 2:
        return None, "all runs are repeats of one configuration"
    sign = -1 if metric.highest else 1
    ranked = sorted(strategies.values(), key=lambda repeats: sign * _median(metric, repeats))
    return _judge(metric, ranked, sign)


def _median(metric: Metric, rows: Rows) -> float:
    return statistics.median(getattr(row, metric.key) for row in rows)


def _say(metric: Metric, value: float, other: float | None = None) -> str:
    """Return the value with its unit, sizes with a suitable one: `0.72 MiB against 1.25`."""
    factor, unit = fit_unit([value, other]) if metric.unit == "GiB" else (1.0, metric.unit)
    against = f" against {format_number(other * factor)}" if other is not None else ""
    return f"{format_number(value * factor)} {unit}{against}"


def _judge(metric: Metric, ranked: list[list[RunRow]], sign: int) -> tuple[str | None, str]:
    """Judge the best strategy against all others.

    Repeats must not overlap, and must be further apart than their noise; single runs must lead clearly.
    """
    best, rivals = (
        sorted(group, key=lambda row: sign * getattr(row, metric.key))
        for group in (ranked[0], chain.from_iterable(ranked[1:]))
    )
    winner, worst_of_best, second = best[0], best[-1], rivals[0]
    first, worst, other = (getattr(row, metric.key) for row in (winner, worst_of_best, second))
    lead_pct = 100 * abs(other - worst) / max(abs(other), abs(worst), 1e-30)
    name, rival = winner.configuration, second.configuration
    mine = _median(metric, ranked[0])
    theirs = _median(metric, [row for row in rivals if row.configuration == rival])
    numbers = f"{_say(metric, mine, theirs)} of {rival}"
    if sign * worst > sign * other:
        return None, f"the repeats of {name} and {rival} overlap"
    if worst == other:
        return None, f"{name} and {rival} are equal: {_say(metric, first)}"
    if metric.counted:
        return name, f"{numbers}; counted, exact on any hardware"
    repeats = min(len(group) for group in ranked)
    band = _find_band(metric, ranked)
    if band is None:
        if lead_pct < LEAST_LEAD_PCT:
            return None, f"{numbers}: less than {LEAST_LEAD_PCT:g} % apart, too close for one repeat"
        return name, numbers + NO_INTERVAL
    theirs = _median(metric, ranked[1])
    noise = band.of_difference(mine, theirs, len(ranked[0]), len(ranked[1]))
    if abs(mine - theirs) <= noise:
        return None, f"{numbers}: within the noise of repeats, {_say(metric, noise)}"
    how = (
        f"every one of {repeats} repeats is ahead" if repeats > 1 else "one repeat, but others were repeated"
    )
    if not noise:
        return name, f"{numbers}; {how}"
    return name, f"{numbers}; {how}, by more than the noise of {format_number(noise)} {metric.unit}"


def _find_band(metric: Metric, ranked: list[list[RunRow]]) -> Band | None:
    """Return the band of the step times over the whole comparison if the number follows from them, else of its own
    repeats.
    """
    shares = [row.noise_ms / (row.step_time_ms_p50 or 0) for group in ranked for row in group if row.noise_ms]
    if metric.timed and shares:
        return Band(shares[0], 0, 0)  # one share for all
    return build_band([[getattr(row, metric.key) for row in group] for group in ranked])


def choose_memory(rows: Rows) -> str:
    """Return the device's peak if every run has one, else the state's memory."""
    return "peak_memory_gib" if rows and all(row.peak_memory_gib for row in rows) else "state_memory_gib"


def build_pareto(rows: Rows, groups: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Return one entry for each group of comparable runs; repeats are one point, at their medians.

    A point is on the front when no other one has at least its throughput with at most its memory, and is better in one
    of the two. On CPUs the front is empty: their throughput ranks nothing.

    Returns:
        [{memory: key of the rows, memory_is: in words, points: [{run (or the name of its repeats), runs,
        memory_gib, samples_per_s, front}], front: by memory, note: why it is empty, or empty}]
    """
    fronts = []
    for group in groups:
        timed = [row for row in rows if row.run in group and row.samples_per_s]
        memory = choose_memory(timed)
        sized = [row for row in timed if getattr(row, memory)]
        repeats: dict[str, list[RunRow]] = {}
        for row in sized:
            repeats.setdefault(row.configuration, []).append(row)
        places = {
            name: (_median(BY_KEY[memory], of_name), _median(BY_KEY["samples_per_s"], of_name))
            for name, of_name in repeats.items()
        }
        if len(places) < 2:
            continue
        on_cpu = any(row.device_type == "cpu" for row in sized)
        points = [
            {
                "run": run,
                "runs": [row.run for row in repeats[run]],
                "memory_gib": place[0],
                "samples_per_s": place[1],
                "front": not on_cpu and not any(_beats(other, place) for other in places.values()),
            }
            for run, place in sorted(places.items(), key=lambda each: each[1][0])
        ]
        front = [point["run"] for point in points if point["front"]]
        about = {"memory": memory, "memory_is": MEMORIES[memory], "note": ON_CPU if on_cpu else ""}
        fronts.append({**about, "points": points, "front": front})
    return fronts


def _beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
    """Return whether the first (memory, samples per s) is nowhere worse than the second, and somewhere better."""
    return a != b and a[0] <= b[0] and a[1] >= b[1]


def build_goals(rows: Rows, fairness: Fairness, memory_limit_gib: float | None = None) -> dict[str, Any]:
    """Return the winners per goal.

    Args:
        rows: `runs` of the report.
        fairness: of the audit; among runs that are not comparable no winner is named.
        memory_limit_gib: of one device; None = no such goal.

    Returns:
        memory_limit_gib, fits: [{run, memory_gib, memory, fits (None = unknown)}], and groups: [{runs, goals: [{goal,
            run (None = not named), reason}]}].

    Raises:
        UserError: the limit is not above 0.
    """
    if memory_limit_gib is not None and not (math.isfinite(memory_limit_gib) and memory_limit_gib > 0):
        raise UserError(
            f"--memory-limit-gib {memory_limit_gib:g}: expected a number above 0 [SL-memory-limit]"
        )
    compared = [row for row in rows if row.is_compared]
    fits = [] if memory_limit_gib is None else [_judge_fit(row, memory_limit_gib) for row in compared]
    members = [(group, [row for row in compared if row.run in group]) for group in fairness.groups]
    groups = [
        {"runs": group, "goals": _name_all(of_group, fits, memory_limit_gib)}
        for group, of_group in members
        if len({row.configuration for row in of_group}) > 1
    ]
    return {"memory_limit_gib": memory_limit_gib, "fits": fits, "groups": groups}


def _name_all(rows: Rows, fits: Sequence[Mapping[str, Any]], limit: float | None) -> list[dict[str, Any]]:
    memory = choose_memory(rows)
    run, reason = _best(BY_KEY[memory], rows)
    found = {
        "fastest": _best(BY_KEY["samples_per_s"], rows),
        "least memory": (run, f"{reason}; {MEMORIES[memory].partition(' (')[0]}"),
    }
    if limit is not None:
        found[f"fastest within {limit:g} GiB per device"] = _name_fastest_that_fits(rows, fits)
    return [{"goal": goal, "run": run, "reason": reason} for goal, (run, reason) in found.items()]


def _name_fastest_that_fits(rows: Rows, fits: Sequence[Mapping[str, Any]]) -> tuple[str | None, str]:
    judged = {entry["run"]: entry["fits"] for entry in fits}
    if any(row.device_type == "cpu" for row in rows):
        return None, ON_CPU
    if unknown := [row.run for row in rows if judged[row.run] is None]:
        return None, f"whether {', '.join(unknown)} would fit is unknown: no device peak was recorded"
    fitting = [row for row in rows if judged[row.run]]
    if not fitting:
        return None, "no run fits"
    left_out = [row.run for row in rows if not judged[row.run]]
    rest = f"; too large: {', '.join(left_out)}" if left_out else ""
    if len(fitting) == 1:
        return fitting[0].run, f"the only one that fits{rest}"
    run, reason = _best(BY_KEY["samples_per_s"], fitting)
    return run, reason + rest


def _judge_fit(row: RunRow, limit: float) -> dict[str, Any]:
    """Judge by the device's peak; without one, the state's memory can only show that a run does not fit."""
    peak, state = row.peak_memory_gib, row.state_memory_gib
    memory = "peak_memory_gib" if peak is not None else "state_memory_gib"
    fits = peak <= limit if peak is not None else False if state is not None and state > limit else None
    return {"run": row.run, "memory_gib": getattr(row, memory), "memory": memory, "fits": fits}
