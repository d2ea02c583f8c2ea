"""A search over settings: ranked by what was learnt, with the noise of repeats; nobody is best inside of it.

What a search is ranked by: the first measure of learning that all its runs have.

How far two points of a search may lie apart by chance: from the seeds, or from the number of samples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.compare.variants import CARRIED_OUT, SEED_SETTING
from stratlab.compare.winners import LEAST_LEAD_PCT, Z_95, get_t_95
from stratlab.run_directory.files import is_number
from stratlab.run_directory.record import RunRecord
from stratlab.wording import format_fact, format_number


@dataclass(frozen=True)
class Goal:
    """What a search is ranked by.

    Attributes:
        key: in the rows of the report; name: for sentences; unit: behind the number.
        highest: the highest value is best.
        samples: resolved fact that says on how many it was measured, of a share of them; "" = no share.
    """

    key: str
    name: str
    unit: str
    highest: bool
    samples: str = ""


GOALS = {  # the first that all runs have: what was chosen on the test split says less about it
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


def choose_goal(rows: Sequence[Mapping[str, Any]]) -> Goal | None:
    tasks = {row["task"] for row in rows}
    if len(tasks) != 1:
        return None
    return next((goal for goal in GOALS[tasks.pop()] if all(is_number(row[goal.key]) for row in rows)), None)


def pool_seeds(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Pooled standard deviation of the seeds' values around the mean of their point, and its degrees of freedom."""
    degrees = sum(len(values) - 1 for values in groups)
    if not degrees:
        return 0.0, 0
    squares = sum(sum((value - statistics.fmean(values)) ** 2 for value in values) for values in groups)
    return math.sqrt(squares / degrees), degrees


def find_difference_noise(
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    goal: Goal,
    spread: float,
    degrees: int,
    runs: Sequence[RunRecord],
) -> tuple[float, str]:
    """Half width of the difference of two points, and where it comes from."""
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
    found = (run.config.get("resolved") or {}).get(goal.samples) if goal.samples else None
    return found if isinstance(found, int) else 0


ON_TEST = "chosen on the test split: what the best of them reaches there is too good"


def build_search(
    runs: Sequence[RunRecord],
    rows: Sequence[Mapping[str, Any]],
    fairness: Mapping[str, Any],
    varied: Sequence[str],
) -> dict[str, Any] | None:
    """The ranking of the largest group of runs that differ in nothing but what is varied; None where nothing is, or
    nothing that changes results.

    Runs with equal varied settings are one point: other strategies compute the same training, and other seeds are its
    repeats. Of runs with the same seed the mean counts once, for they are no independent trial.

    Args:
        fairness: of the audit, with its `search_groups`.
        varied: names of settings.

    Returns:
        varied; goal {key, name, unit, highest} or None; points: best first [{place, settings, runs, strategies, seeds,
        value (mean over the seeds), values, behind (the best), noise (half width of that difference), within_noise (of
        the best), samples_seen, test_accuracy_pct, test_perplexity}]; best: the settings that are ahead of all others
        by more than the noise, or None; reason; noise {method, degrees}; left_out [{run, why}]; remarks.
    """
    varied = [name for name in varied if name not in fairness["ways"]]
    excused = {name for entry in fairness["differences"] for name in entry["varied"].split(", ")}
    if {*varied} <= {*CARRIED_OUT} - excused:  # what is left of them here is no way: there is batch norm
        return None
    groups = fairness["search_groups"]
    ranked = set(groups[0]) if groups else set()
    found: dict[str, Any] = {
        "varied": list(varied),
        "goal": None,
        "points": [],
        "best": None,
        "noise": None,
        "left_out": _list_left_out(runs, fairness, ranked),
        "remarks": [],
    }
    by_name = {row["run"]: row for row in rows}
    members = [run for run in runs if run.name in ranked]
    goal = choose_goal([by_name[run.name] for run in members])
    if goal is None:
        missing = (
            "no run is left to rank" if not members else "no measure of the goal is recorded by all runs"
        )
        return {**found, "reason": missing}
    points = _build_points(members, by_name, goal, varied)
    sign = -1 if goal.highest else 1
    points.sort(key=lambda point: sign * point["value"])
    spread, degrees = pool_seeds([point["values"] for point in points])
    for place, point in enumerate(points, 1):
        noise, _ = find_difference_noise(points[0], point, goal, spread, degrees, members)
        point |= {"place": place, "behind": abs(point["value"] - points[0]["value"]), "noise": noise}
        point["within_noise"] = point["behind"] <= noise
    best, reason = _judge(points, goal, spread, degrees, members)
    return {
        **found,
        "goal": {"key": goal.key, "name": goal.name, "unit": goal.unit, "highest": goal.highest},
        "points": points,
        "best": best,
        "reason": reason,
        "noise": {
            "method": find_difference_noise(points[0], points[-1], goal, spread, degrees, members)[1],
            "degrees": degrees,
        },
        "remarks": _list_remarks(points, goal, members),
    }


def _build_points(
    runs: Sequence[RunRecord], rows: Mapping[str, Mapping[str, Any]], goal: Goal, varied: Sequence[str]
) -> list[dict[str, Any]]:
    by_point: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_point.setdefault(str([run.config["config"].get(name) for name in varied]), []).append(run)
    points = []
    for members in by_point.values():
        by_seed: dict[Any, list[float]] = {}
        for run in members:
            by_seed.setdefault(run.config["config"].get(SEED_SETTING), []).append(rows[run.name][goal.key])
        values = [statistics.fmean(each) for each in by_seed.values()]
        first = rows[members[0].name]
        points.append(
            {
                "settings": {name: members[0].config["config"].get(name) for name in varied},
                "runs": [run.name for run in members],
                "strategies": list(dict.fromkeys(str(run.strategy) for run in members)),
                "seeds": len(values),
                "value": statistics.fmean(values),
                "values": values,
                "same_seed": max(max(each) - min(each) for each in by_seed.values()),
                "samples_seen": (first["steps"] or 0) * (first["global_batch_size"] or 0) or None,
                **{
                    name: _mean([rows[run.name][name] for run in members])
                    for name in ("test_accuracy_pct", "test_perplexity")
                },
            }
        )
    return points


def _judge(
    points: Sequence[Mapping[str, Any]], goal: Goal, spread: float, degrees: int, runs: Sequence[RunRecord]
) -> tuple[dict[str, Any] | None, str]:
    if len(points) < 2:
        return None, "only one point of the search is left to rank"
    first, second = points[:2]
    noise, method = find_difference_noise(first, second, goal, spread, degrees, runs)
    unit = f" {goal.unit}" if goal.unit else ""
    lead = abs(first["value"] - second["value"])
    numbers = (
        f"{goal.name} {format_number(first['value'])}{unit} against {format_number(second['value'])}{unit} of "
        f"{name_point(second)}"
    )
    if lead <= noise:
        tied = "; ".join(name_point(point) for point in points if point["within_noise"])
        within = f"within the noise of {format_number(noise)}{unit} ({method})"
        return None, f"{numbers}: {within}; not told apart: {tied}"
    ahead = f"ahead by more than the noise of {format_number(noise)}{unit} ({method})"
    return dict(first["settings"]), f"{numbers}; {ahead}"


def _list_left_out(
    runs: Sequence[RunRecord], fairness: Mapping[str, Any], ranked: set[str]
) -> list[dict[str, str]]:
    """Every run that is not ranked, with what it differs in from the first that is."""
    first = next((run.name for run in runs if run.name in ranked), None)
    others = [entry for entry in fairness["differences"] if entry["matters"] and not entry["varied"]]
    degenerate = {entry["run"]: entry["why"] for entry in fairness["not_compared"]}
    found = []
    for run in runs:
        if run.name in ranked:
            continue
        differing = [
            entry["field"]
            for entry in others
            if first and entry["values"].get(run.name) != entry["values"].get(first)
        ]
        why = degenerate.get(run.name) or (f"{run.status}: {run.ending}" if run.status != "finished" else "")
        strange = "its facts are not known or not as they should be"
        differs = f"differs in {', '.join(differing)}" if differing else strange
        found.append({"run": run.name, "why": why or differs})
    return found


def _list_remarks(points: Sequence[Mapping[str, Any]], goal: Goal, runs: Sequence[RunRecord]) -> list[str]:
    seen = sorted({point["samples_seen"] for point in points if point["samples_seen"]})
    remarks = [ON_TEST] if goal.key.startswith("test_") else []
    if len(seen) > 1:
        remarks.append(
            f"the points of the search have seen from {seen[0]:,} to {seen[-1]:,} samples"
            + _name_cause(points[0]["settings"], runs)
        )
    return remarks


def _name_cause(varied: Mapping[str, Any], runs: Sequence[RunRecord]) -> str:
    """Why points have seen other amounts; "" where that is what was asked for."""
    if not varied.keys().isdisjoint(("steps", "epochs", "train_samples")):
        return ""
    if any(run.config["config"].get("steps") for run in runs):
        return ": with run.config.epochs instead of steps they would see the same"
    return ": an epoch has whole batches only"


def name_point(point: Mapping[str, Any]) -> str:
    """`lr=0.01, optimizer=sgd`."""
    return _name_settings(point["settings"])


def _name_settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={format_fact(value)}" for name, value in settings.items())


def say_search(search: Mapping[str, Any] | None) -> list[str]:
    """The answer in sentences: what was varied, who is best or why nobody is, what was left out."""
    if not search:
        return []
    best = _name_settings(search["best"] or {})
    said = [f"best of what was varied: {best or 'nobody is named'} ({search['reason']})"]
    said += [f"not ranked: {entry['run']}, {entry['why']}" for entry in search["left_out"]]
    return said + list(search["remarks"])


def _mean(values: Sequence[Any]) -> float | None:
    known = [value for value in values if is_number(value)]
    return statistics.fmean(known) if len(known) == len(values) and known else None
