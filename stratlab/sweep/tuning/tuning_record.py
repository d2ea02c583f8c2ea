"""What is kept of a tuning, as JSON beside the runs of its comparison (read by compare/reading/kept_tuning.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratlab.sweep.matrix import Release
from stratlab.sweep.tuning.candidates import build_candidate, name_tuning
from stratlab.sweep.tuning.knobs import list_knobs
from stratlab.sweep.tuning.search import (
    METRICS,
    Knobs,
    Measured,
    Metric,
    Search,
    compute_lead,
    find_band,
    name_knobs,
)
from stratlab.sweep.tuning_definition import Tune

ORIGIN = ("backend", "device", "hardware", "world_size", "nodes", "steps", "measured_steps", "versions")


def build_record(
    tune: Tune,
    comparison: str,
    combinations: Mapping[str, Sequence[Release]],
    strategies: Mapping[str, str],
    searches: Mapping[str, Search],
    report: Mapping[str, Any],
) -> dict[str, Any]:
    """The record.

    Args:
        combinations: name of the first release -> that and its repeats, of the comparison.
        strategies: name of a chart -> its strategy.
        searches: name of the first release -> its search, where it was tuned.
        report: of the comparison of the candidates.

    Returns:
        comparison; tuning (the name of the candidates' comparison); metric: {name, key, unit, highest}; steps, repeats,
        candidates as asked for; origin: as in a report; searches: [{strategy, point, runs, tried, not_tried, chosen,
        why_not}], where tried is [{knobs, runs, values, value, why, lead_pct, noise_pct, measured_noise}], in the order
        of the search, the first one as it comes, leads against that one; not_tried: [knobs], values for which no
        candidate was left; chosen: knobs; why_not: why nothing was tried.
    """
    metric = METRICS[tune.metric]
    return {
        "schema_version": 1,
        "comparison": comparison,
        "tuning": name_tuning(comparison),
        "metric": {"name": tune.metric, "key": metric.key, "unit": metric.unit, "highest": metric.highest},
        "steps": tune.steps,
        "repeats": tune.repeats,
        "candidates": tune.candidates,
        "origin": {name: (report.get("origin") or {}).get(name) for name in ORIGIN},
        "searches": [
            {
                "strategy": releases[0].strategy,
                "point": dict(releases[0].point),
                "runs": [release.name for release in releases],
                **(
                    _tell_search(searches[name], releases[0], tune, comparison, metric)
                    if name in searches
                    else {
                        "tried": [],
                        "not_tried": [],
                        "chosen": {},
                        "why_not": _say_why_not(strategies[releases[0].strategy]),
                    }
                ),
            }
            for name, releases in combinations.items()
        ],
    }


def _tell_search(found: Search, base: Release, tune: Tune, comparison: str, metric: Metric) -> dict[str, Any]:
    as_it_comes, band = found.tried[0][1], find_band(found.tried)
    tried = []
    for knobs, measured in found.tried:
        lead = compute_lead(measured, as_it_comes, metric, band)
        tried.append(
            {
                "knobs": dict(knobs),
                "runs": [release.name for release in build_candidate(base, tune, comparison, knobs)],
                "values": list(measured.values),
                "value": measured.value,
                "why": measured.why,
                "lead_pct": lead.lead_pct if lead else None,
                "noise_pct": lead.noise_pct if lead else None,
                "measured_noise": bool(lead and lead.measured_noise),
            }
        )
    nothing_works = all(measured.value is None for _, measured in found.tried)
    return {
        "tried": tried,
        "not_tried": [dict(knobs) for knobs in found.not_tried],
        "chosen": dict(found.best),
        "why_not": "none of its candidates gave a number" if nothing_works else "",
    }


def say_search(found: Search, metric: Metric) -> str:
    """What was chosen first, then the others: `as it comes, 98.2 samples per s; static_graph=true 30`."""
    ordered = sorted(found.tried, key=lambda entry: entry[0] != found.best)
    parts = [_say_candidate(knobs, measured) for knobs, measured in ordered]
    parts[0] = f"{parts[0]} {metric.unit}" if ordered[0][1].value is not None else parts[0]
    left_out = ", ".join(name_knobs(knobs) for knobs in found.not_tried)
    return "; ".join([*parts, *([f"not tried: {left_out}"] if left_out else [])])


def _say_candidate(knobs: Knobs, measured: Measured) -> str:
    name = name_knobs(knobs) or "as it comes,"
    return f"{name} out ({measured.why})" if measured.value is None else f"{name} {measured.value:.4g}"


def _say_why_not(strategy: str) -> str:
    return "" if not list_knobs(strategy) else f"the sweep's file gives {strategy} no knob to try"


def read_measured(
    names: Sequence[str],
    rows: Mapping[str, Mapping[str, Any]],
    said: Mapping[str, str],
    metric: Metric,
    disturbed: Mapping[str, Any],
) -> Measured:
    """What became of a candidate.

    Args:
        names: its runs.
        rows: of the report of the candidates' comparison.
        said: run -> how it ended, as the sweep has seen it.
        disturbed: run -> what was at work beside it, "none" for nothing.
    """
    values: list[float] = []
    for name in names:
        row = rows.get(name)
        why = ""
        if row is None:
            why = said.get(name) or "it left no run directory"
        elif row["status"] != "finished":
            why = row["ending"]
        elif (row.get("attempts") or 1) > 1:
            why = f"it took {row['attempts']} attempts, and its times hold those of a further start"
        elif disturbed.get(name, "none") not in ("none", "unknown"):
            why = f"{disturbed[name]} was at work beside it"
        elif row.get(metric.key) is None:
            why = f"{metric.key} was not measured"
        if why:
            return Measured((), f"{name}: {why}" if len(names) > 1 else why)
        assert row
        values.append(float(row[metric.key]))
    return Measured(tuple(values))


def find_disturbed(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run -> what was at work beside it, of a report; empty where nothing was beside any."""
    differences = (report.get("fairness") or {}).get("differences") or []
    return next((entry["values"] for entry in differences if entry["field"] == "runs beside it"), {})
