"""Rank a search over settings by learning, with the noise of repeats; within the noise no run is best.

choose_goal             the first measure of learning that all its runs have.
build_search            the points, best first, and whether one is ahead by more than the noise.
find_difference_noise   the distance of two points by chance: from the seeds, or from the number of samples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.compare.fairness import Fairness
from stratlab.compare.run_rows import Rows, RunRow
from stratlab.compare.variants import CARRIED_OUT, SEED_SETTING
from stratlab.compare.winners import LEAST_LEAD_PCT, Z_95, get_t_95
from stratlab.run_directory.files import is_number
from stratlab.run_directory.record import RunRecord
from stratlab.wording import format_fact, format_number

ON_TEST = "chosen on the test split: what the best of them reaches there is too good"
STRANGE = "its facts are not known or not as they should be"
Point = dict[str, Any]
"""Of `build_search`."""


@dataclass(frozen=True)
class Goal:
    """The measure that ranks a search.

    Attributes:
        key: in the rows of the report; name: for sentences; unit: after the number.
        highest: the highest value is best.
        samples: resolved fact with the number of samples of a share; "" = not a share.
    """

    key: str
    name: str
    unit: str
    highest: bool
    samples: str = ""


GOALS = {  # the first that all runs have: the test split loses its meaning once it was used for a choice
    "image": (
        Goal("validation_accuracy_pct", "validation accuracy", "%", True, "validation_samples"),
        Goal("test_accuracy_pct", "test accuracy", "%", True, "test_samples"),
        Goal("validation_loss", "validation loss", "", False),
    ),
    "text": (
        Goal("validation_perplexity", "validation perplexity", "", False),
        Goal("test_perplexity", "test perplexity", "", False),
        Goal("validation_loss", "validation loss", "", False),
    ),
}


def choose_goal(rows: Rows) -> Goal | None:
    tasks = {row.task for row in rows}
    goals = GOALS[tasks.pop() or ""] if len(tasks) == 1 else ()
    return next((goal for goal in goals if all(is_number(getattr(row, goal.key)) for row in rows)), None)


def pool_seeds(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the pooled standard deviation of the seeds' values around the mean of their point, and its degrees of
    freedom.
    """
    degrees = sum(len(values) - 1 for values in groups)
    squares = sum((value - statistics.fmean(values)) ** 2 for values in groups for value in values)
    return (math.sqrt(squares / degrees), degrees) if degrees else (0.0, 0)


def find_difference_noise(
    a: Point, b: Point, goal: Goal, spread: float, degrees: int, runs: Sequence[RunRecord]
) -> tuple[float, str]:
    """Return the half width of the difference of two points, and its source."""
    same_seed = max(a["same_seed"], b["same_seed"])
    if degrees:
        width = get_t_95(degrees) * spread * math.sqrt(1 / a["seeds"] + 1 / b["seeds"])
        return max(width, same_seed), (
            "pooled standard deviation of the seeds, times Student's t (95 %), of the difference of two means"
        )
    samples = min((_count_samples(run, goal) for run in runs), default=0)
    if samples:
        shares = [point["value"] / 100 for point in (a, b)]
        width = 100 * Z_95 * math.sqrt(sum(share * (1 - share) for share in shares) / samples)
        return max(width, 100 / samples, same_seed), (
            f"one seed each: what another {samples} samples would change by chance (95 %)"
        )
    width = LEAST_LEAD_PCT / 100 * max(abs(a["value"]), abs(b["value"]))
    return max(width, same_seed), f"one seed each: differences below {LEAST_LEAD_PCT:g} % count as none"


def _count_samples(run: RunRecord, goal: Goal) -> int:
    samples = run.resolved.get(goal.samples) if goal.samples else None
    return samples if isinstance(samples, int) else 0


def build_search(
    runs: Sequence[RunRecord], rows: Rows, fairness: Fairness, varied: Sequence[str]
) -> dict[str, Any] | None:
    """Return the ranking of the largest group of runs that differ only in varied settings.

    None if no setting is varied, or none that changes results. Runs with equal varied settings are one point: other
    strategies compute the same training, and other seeds are its repeats. The mean of runs with the same seed counts
    once, because they are not independent trials.

    Args:
        fairness: of the audit, with its `search_groups`.
        varied: names of settings.

    Returns:
        varied; goal {key, name, unit, highest} or None; points, best first; best; reason; noise {method, degrees};
        left_out [{run, why}]; remarks. A point is {place, settings, runs, strategies, seeds, value (mean over the
        seeds), values, `behind`, noise, within_noise, samples_seen, test_accuracy_pct, test_perplexity}. `behind` is
        the distance from the best, noise the half width of that difference. best are the settings that are ahead of
        all others by more than the noise, or None.
    """
    varied = [name for name in varied if name not in fairness.ways]
    excused = {name for entry in fairness.differences for name in entry.causes}
    if {*varied} <= {*CARRIED_OUT} - excused:  # the others are not ways here: there is batch norm
        return None
    ranked = set(fairness.search_groups[0]) if fairness.search_groups else set()
    found: dict[str, Any] = {"varied": varied, "left_out": _list_left_out(runs, fairness, ranked)}
    by_name = {row.run: row for row in rows}
    members = [run for run in runs if run.name in ranked]
    goal = choose_goal([by_name[run.name] for run in members])
    if goal is None:
        why = "no measure of the goal is recorded by all runs" if members else "no run is left to rank"
        return {
            **found,
            "goal": None,
            "points": [],
            "best": None,
            "noise": None,
            "remarks": [],
            "reason": why,
        }
    points = _build_points(members, by_name, goal, varied)
    points.sort(key=lambda point: -point["value"] if goal.highest else point["value"])
    spread, degrees = pool_seeds([point["values"] for point in points])
    for place, point in enumerate(points, 1):
        noise, method = find_difference_noise(points[0], point, goal, spread, degrees, members)
        point |= {"place": place, "behind": abs(point["value"] - points[0]["value"]), "noise": noise}
        point["within_noise"] = point["behind"] <= noise
    best, reason = _judge(points, goal, method)
    return {
        **found,
        "goal": {"key": goal.key, "name": goal.name, "unit": goal.unit, "highest": goal.highest},
        "points": points,
        "best": best,
        "reason": reason,
        "noise": {"method": method, "degrees": degrees},
        "remarks": _list_remarks(points, goal, members),
    }


def _build_points(
    runs: Sequence[RunRecord], rows: Mapping[str, RunRow], goal: Goal, varied: Sequence[str]
) -> list[Point]:
    by_point: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_point.setdefault(str([run.settings.get(name) for name in varied]), []).append(run)
    points = []
    for members in by_point.values():
        by_seed: dict[Any, list[float]] = {}
        for run in members:
            by_seed.setdefault(run.settings.get(SEED_SETTING), []).append(getattr(rows[run.name], goal.key))
        values = [statistics.fmean(each) for each in by_seed.values()]
        of_point = [rows[run.name] for run in members]
        points.append(
            {
                "settings": {name: members[0].settings.get(name) for name in varied},
                "runs": [run.name for run in members],
                "strategies": list(dict.fromkeys(str(run.strategy) for run in members)),
                "seeds": len(values),
                "value": statistics.fmean(values),
                "values": values,
                "same_seed": max(max(each) - min(each) for each in by_seed.values()),
                "samples_seen": (of_point[0].steps or 0) * (of_point[0].global_batch_size or 0) or None,
                "test_accuracy_pct": _mean([row.test_accuracy_pct for row in of_point]),
                "test_perplexity": _mean([row.test_perplexity for row in of_point]),
            }
        )
    return points


def _mean(values: Sequence[Any]) -> float | None:
    return statistics.fmean(values) if all(map(is_number, values)) else None


def _judge(points: Sequence[Point], goal: Goal, method: str) -> tuple[dict[str, Any] | None, str]:
    if len(points) < 2:
        return None, "only one point of the search is left to rank"
    first, second = points[:2]
    unit = f" {goal.unit}" if goal.unit else ""
    ends = f"{format_number(first['value'])}{unit} against {format_number(second['value'])}{unit}"
    numbers = f"{goal.name} {ends} of {name_point(second)}"
    noise = f"the noise of {format_number(second['noise'])}{unit} ({method})"
    if second["within_noise"]:
        tied = "; ".join(name_point(point) for point in points if point["within_noise"])
        return None, f"{numbers}: within {noise}; not told apart: {tied}"
    return dict(first["settings"]), f"{numbers}; ahead by more than {noise}"


def _list_left_out(runs: Sequence[RunRecord], fairness: Fairness, ranked: set[str]) -> list[dict[str, str]]:
    """Return every run that is not ranked, with its differences from the first ranked one."""
    first = next((run.name for run in runs if run.name in ranked), None)
    apart = [entry for entry in fairness.differences if entry.keeps_apart] if first else []
    degenerate = {entry["run"]: entry["why"] for entry in fairness.not_compared}
    left_out = []
    for run in (run for run in runs if run.name not in ranked):
        differing = [
            each.field for each in apart if each.values.get(run.name) != each.values.get(first or "")
        ]
        why = degenerate.get(run.name) or (f"{run.status}: {run.ending}" if run.status != "finished" else "")
        differs = f"differs in {', '.join(differing)}" if differing else STRANGE
        left_out.append({"run": run.name, "why": why or differs})
    return left_out


def _list_remarks(points: Sequence[Point], goal: Goal, runs: Sequence[RunRecord]) -> list[str]:
    seen = sorted({point["samples_seen"] for point in points if point["samples_seen"]})
    remarks = [ON_TEST] if goal.key.startswith("test_") else []
    if len(seen) > 1:
        why = ": an epoch has whole batches only"
        if not points[0]["settings"].keys().isdisjoint(("steps", "epochs", "train_samples")):
            why = ""  # it is as requested
        elif any(run.settings.get("steps") for run in runs):
            why = ": with run.config.epochs instead of steps they would see the same"
        remarks.append(f"the points of the search have seen from {seen[0]:,} to {seen[-1]:,} samples{why}")
    return remarks


def name_point(point: Point) -> str:
    """Return `lr=0.01, optimizer=sgd`."""
    return name_settings(point["settings"])


def name_settings(settings: Mapping[str, Any] | None) -> str:
    """Return the settings as text; "" without any."""
    return ", ".join(f"{name}={format_fact(value)}" for name, value in (settings or {}).items())


def say_search(search: Mapping[str, Any] | None) -> list[str]:
    """Return the answer in sentences: the varied settings, the best run or why there is not any, and runs left out."""
    if not search:
        return []
    best = name_settings(search["best"]) or "nobody is named"
    left_out = [f"not ranked: {entry['run']}, {entry['why']}" for entry in search["left_out"]]
    return [f"best of what was varied: {best} ({search['reason']})", *left_out, *search["remarks"]]
