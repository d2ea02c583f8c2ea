"""Which run is best in what, if that may be said at all. A name not earned is None with its reason.

How far repeats of one thing lie apart by chance, and so from which difference on one may speak of a difference.

Memory against throughput: which runs nobody beats in both.

The best run for a goal, only among runs that may be compared: fastest, least memory, fastest that fits.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.compare.run_rows import is_compared, name_variant
from stratlab.user_error import UserError
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


@dataclass(frozen=True)
class Band:
    """What one more repeat would differ by.

    Attributes:
        relative: half width of the band around one run, as a share of its value.
        degrees: of freedom: repeats minus groups, over all groups with at least two.
        repeats: values that went in.
    """

    relative: float
    degrees: int
    repeats: int

    def of_difference(self, a: float, b: float, repeats_a: int = 1, repeats_b: int = 1) -> float:
        """Half width of the band around a - b; with repeats: of the difference of their means."""
        return self.relative * math.sqrt(a * a / repeats_a + b * b / repeats_b)


def build_band(groups: Sequence[Sequence[float]]) -> Band | None:
    """Pools the spread of all groups of repeats; None without any repeat. Slow and fast runs are taken to spread
    equally in relation to their value.

    Args:
        groups: the values of the repeats, one group for each thing that was repeated; single ones do not count.
    """
    repeated = [list(group) for group in groups if len(group) > 1 and statistics.fmean(group) > 0]
    degrees = sum(len(group) - 1 for group in repeated)
    if not degrees:
        return None
    squares = sum(sum((value / statistics.fmean(group) - 1) ** 2 for value in group) for group in repeated)
    return Band(get_t_95(degrees) * math.sqrt(squares / degrees), degrees, sum(map(len, repeated)))


def get_t_95(degrees: int) -> float:
    """Student's t, two-sided 95 %; beyond the table at most 1 % too large."""
    return T_95[degrees - 1] if degrees <= len(T_95) else Z_95 + 2.5 / degrees


def get_band(rows: Sequence[Mapping[str, Any]], variants: Sequence[Sequence[str]]) -> Band | None:
    """The band of the median step times."""
    steps = {row["run"]: row["step_time_ms_p50"] for row in rows if row["status"] == "finished"}
    return build_band([[steps[name] for name in names if steps.get(name)] for names in variants])


def build_noise(rows: Sequence[Mapping[str, Any]], variants: Sequence[Sequence[str]]) -> dict[str, Any]:
    """What the report says about repeats.

    Returns:
        method, relative_pct (half width, None without repeats), degrees, repeats (runs that went in), variants: [[runs
        that are repeats of each other]], and noise_ms: run -> half width of the band around its median step.
    """
    band = get_band(rows, variants)
    known = [row for row in rows if row["status"] == "finished" and row["step_time_ms_p50"]]
    return {
        "method": METHOD if band else NO_BAND,
        "relative_pct": 100 * band.relative if band else None,
        "degrees": band.degrees if band else 0,
        "repeats": band.repeats if band else 0,
        "variants": [list(names) for names in variants],
        "noise_ms": {row["run"]: band.relative * row["step_time_ms_p50"] if band else None for row in known},
    }


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


Rows = Sequence[Mapping[str, Any]]
MEMORIES = {
    "peak_memory_gib": "peak of device memory per rank",
    "state_memory_gib": "memory held by the state per rank (no device peak was recorded by all)",
}


def choose_memory(rows: Rows) -> str:
    """The device's peak where every run has one, else what the state holds."""
    return "peak_memory_gib" if rows and all(row["peak_memory_gib"] for row in rows) else "state_memory_gib"


def build_pareto(rows: Rows, groups: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """One entry for each group of comparable runs.

    A run is on the front when no other one has at least its throughput with at most its memory, and is better in one
    of the two. On CPUs nobody is: their throughput ranks nothing.

    Returns:
        [{memory: key of the rows, memory_is: in words, points: [{run, memory_gib, samples_per_s, front}], front: runs
        by memory, note: why nobody is on it, or empty}]
    """
    found = []
    for group in groups:
        usable = [row for row in rows if row["run"] in group and row["samples_per_s"]]
        memory = choose_memory(usable)
        usable = [row for row in usable if row[memory]]
        if len(usable) < 2:
            continue
        on_cpu = any(row["device_type"] == "cpu" for row in usable)
        front = [] if on_cpu else [row["run"] for row in usable if not _is_beaten(row, usable, memory)]
        points = [
            {
                "run": row["run"],
                "memory_gib": row[memory],
                "samples_per_s": row["samples_per_s"],
                "front": row["run"] in front,
            }
            for row in sorted(usable, key=lambda row: row[memory])
        ]
        found.append(
            {
                "memory": memory,
                "memory_is": MEMORIES[memory],
                "points": points,
                "front": [point["run"] for point in points if point["front"]],
                "note": ON_CPU if on_cpu else "",
            }
        )
    return found


def _is_beaten(row: Mapping[str, Any], rows: Rows, memory: str) -> bool:
    return any(
        other[memory] <= row[memory]
        and other["samples_per_s"] >= row["samples_per_s"]
        and (other[memory] < row[memory] or other["samples_per_s"] > row["samples_per_s"])
        for other in rows
    )


def build_goals(
    rows: Rows, fairness: Mapping[str, Any], memory_limit_gib: float | None = None
) -> dict[str, Any]:
    """Winners per goal.

    Args:
        rows: `runs` of the report.
        fairness: of the audit; nobody is named among runs that are not comparable.
        memory_limit_gib: of one device; None = no such goal.

    Returns:
        memory_limit_gib, fits: [{run, memory_gib, memory, fits (None = unknown)}], and
        groups: [{runs, goals: [{goal, run (None = nobody), reason}]}].

    Raises:
        UserError: the limit is not above 0.
    """
    if memory_limit_gib is not None and not (math.isfinite(memory_limit_gib) and memory_limit_gib > 0):
        raise UserError(
            f"--memory-limit-gib {memory_limit_gib:g}: expected a number above 0 [SL-memory-limit]"
        )
    finished = [row for row in rows if is_compared(row)]
    fits = [] if memory_limit_gib is None else [_judge_fit(row, memory_limit_gib) for row in finished]
    groups = [group for group in fairness["groups"] if len(group) > 1]
    return {
        "memory_limit_gib": memory_limit_gib,
        "fits": fits,
        "groups": [
            {
                "runs": group,
                "goals": _name_all([r for r in finished if r["run"] in group], fits, memory_limit_gib),
            }
            for group in groups
        ],
    }


def _name_all(rows: Rows, fits: Rows, limit: float | None) -> list[dict[str, Any]]:
    winners, reasons = name_winners(rows, {"verdict": "comparable"})
    memory = choose_memory(rows)
    goals = [
        {"goal": "fastest", "run": winners["samples_per_s"], "reason": reasons["samples_per_s"]},
        {
            "goal": "least memory",
            "run": winners[memory],
            "reason": f"{reasons[memory]}; {MEMORIES[memory].partition(' (')[0]}",
        },
    ]
    if limit is not None:
        run, reason = _name_fastest_that_fits(rows, fits)
        goals.append({"goal": f"fastest within {limit:g} GiB per device", "run": run, "reason": reason})
    return goals


def _name_fastest_that_fits(rows: Rows, fits: Rows) -> tuple[str | None, str]:
    judged = {entry["run"]: entry["fits"] for entry in fits}
    if any(row["device_type"] == "cpu" for row in rows):
        return None, ON_CPU
    unknown = [row["run"] for row in rows if judged[row["run"]] is None]
    if unknown:
        return None, f"whether {', '.join(unknown)} would fit is unknown: no device peak was recorded"
    fitting = [row for row in rows if judged[row["run"]]]
    if not fitting:
        return None, "no run fits"
    left_out = [row["run"] for row in rows if not judged[row["run"]]]
    rest = f"; too large: {', '.join(left_out)}" if left_out else ""
    if len(fitting) == 1:
        return fitting[0]["run"], f"the only one that fits{rest}"
    winners, reasons = name_winners(fitting, {"verdict": "comparable"})
    return winners["samples_per_s"], reasons["samples_per_s"] + rest


def _judge_fit(row: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """By the device's peak; without one, what the state holds can only tell that a run does not fit."""
    peak, state = row["peak_memory_gib"], row["state_memory_gib"]
    memory = "peak_memory_gib" if peak is not None else "state_memory_gib"
    fits = peak <= limit if peak is not None else False if state is not None and state > limit else None
    return {"run": row["run"], "memory_gib": row[memory], "memory": memory, "fits": fits}
