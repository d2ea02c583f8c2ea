"""The content of report.json: what every run measured, whether the runs are comparable, and what follows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stratlab.compare.explaining.attribution import build_attribution
from stratlab.compare.judging.agreement import loss_agreement
from stratlab.compare.judging.fairness import audit, say_degenerate
from stratlab.compare.judging.goals import build_goals
from stratlab.compare.judging.headline import build_headline
from stratlab.compare.judging.noise import build_noise, get_band
from stratlab.compare.judging.pareto import build_pareto
from stratlab.compare.judging.ranking import build_search
from stratlab.compare.judging.scaling import build_scaling
from stratlab.compare.judging.sharding import build_sharding
from stratlab.compare.judging.tuned import say_tuning
from stratlab.compare.judging.variants import build_variants
from stratlab.compare.judging.varied import check_varied, list_ways, name_way
from stratlab.compare.judging.winners import ON_CPU, ONE_REPEAT, name_group_winners, name_winners
from stratlab.compare.reading.kept_tuning import NOT_IN_MLFLOW, apply_tuning
from stratlab.compare.reading.layouts import find_repeated_layouts
from stratlab.compare.reading.run_rows import apply_others, build_row, is_compared, name_variant
from stratlab.compare.reading.surroundings import apply_place
from stratlab.compare.reading.warmup import TRAINERS_OWN
from stratlab.run_directory.record import TRACED, RunRecord
from stratlab.user_error import UserError

ONLY_TRACES = (
    "traces of another program; a step is the mean of the recorded ones, and losses, samples per second and memory are "
    "not known"
)
ORIGIN_FIELDS = ("backend", "device_type", "device_name", "world_size", "nodes", "steps", "measured_steps")


def compare(
    runs: Sequence[RunRecord],
    *,
    baseline: str | None = None,
    memory_limit_gib: float | None = None,
    tuning: Mapping[str, Any] | None = None,
    varied: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything that can be said about the runs of a comparison; every value is plain JSON.

    Args:
        baseline: the run that the others are explained against; None = the fastest.
        memory_limit_gib: of one device, for the goal "fastest within"; None = no such goal.
        tuning: of `reading.kept_tuning.read_tuning`; None = the strategies were not tuned by a sweep.
        varied: settings that the runs are meant to differ in: the audit lets them, and results are ranked over them.

    Raises:
        UserError: there is no run, no such baseline, the limit is none, or a setting cannot be varied.
    """
    records = apply_tuning(apply_place([run for run in runs if run.status != "not a run"]), tuning)
    if not records:
        why = "; ".join(f"{run.name}: {run.ending}" for run in runs)
        raise UserError(f"no run to compare{': ' if why else ''}{why} [SL-nothing-to-compare]")
    check_varied(varied, records)
    agreement = loss_agreement(records)
    fairness = audit(records, agreement["pairs"], varied)
    found, ways = fairness["differences"], fairness["ways"]
    rows = [build_row(run, name_way(run.name, found, ways)) for run in records]
    variants = [[run.name for run in group] for group in build_variants(records)]
    noise = build_noise(rows, variants)
    band = get_band(rows, variants)
    scaling = build_scaling(records, rows, band)
    sharding = build_sharding(records)
    attribution = build_attribution(
        rows,
        {run.name: run.analysis for run in records},
        fairness,
        variants,
        band,
        baseline,
    )
    rows = [apply_others(row, noise, scaling, sharding, attribution) for row in rows]
    winners, reasons = name_winners(rows, fairness)
    group_winners = name_group_winners(rows, fairness)
    report = {
        "schema_version": 2,
        "comparison": _names(
            [run.config.get("comparison") or run.summary.get("comparison") for run in records]
        ),
        "headline": build_headline(records, fairness, scaling, group_winners),
        "origin": _origin(records, rows),
        "runs": rows,
        "not_runs": [
            {"folder": str(run.folder), "why": run.ending} for run in runs if run.status == "not a run"
        ],
        "fairness": {name: value for name, value in fairness.items() if name != "pairs"},
        "loss_agreement": {**agreement, "pairs": fairness["pairs"]},
        "winners": winners,
        "winner_reasons": reasons,
        "group_winners": group_winners,
        "attribution": attribution,
        "noise": noise,
        "warmup": {row["run"]: row["warmup"] for row in rows},
        "scaling": scaling,
        "sharding": sharding,
        "pareto": build_pareto(rows, fairness["groups"]),
        "goals": build_goals(rows, fairness, memory_limit_gib),
        "tuning": tuning,
        "search": build_search(records, rows, fairness, varied),
        "remarks": [
            *_remarks(rows),
            *_say_ways(fairness, varied),
            *_say_places(records),
            *say_tuning(tuning),
            *_say_unknown_tuning(records),
        ],
    }
    return _plain(report)


def _say_ways(fairness: Mapping[str, Any], varied: Sequence[str]) -> list[str]:
    ways = list_ways(fairness["differences"])
    return [
        f"the runs differ in how one training is carried out: with --varied {','.join([*varied, *ways])} stratlab "
        "compare holds them against each other, if their losses agree"
    ] * bool(ways)


def _say_unknown_tuning(runs: Sequence[RunRecord]) -> list[str]:
    asked = any(run.tuning == NOT_IN_MLFLOW for run in runs)
    return [
        f"whether a sweep has tuned the strategies is {NOT_IN_MLFLOW}; stratlab compare DIR knows"
    ] * asked


def _origin(runs: Sequence[RunRecord], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where the numbers come from. A fact on which the runs differ is the list of its values."""
    finished = [row for row in rows if is_compared(row)]
    facts = {name: _one_or_all([row[name] for row in finished]) for name in ORIGIN_FIELDS}
    versions: dict[str, list[Any]] = {}
    for run in runs:
        for name, version in ((run.config.get("provenance") or {}).get("versions") or {}).items():
            versions.setdefault(name, []).append(version)
    strategies = Counter(name_variant(row) for row in finished)
    return {
        "backend": facts["backend"],
        "device": facts["device_type"],
        "hardware": facts["device_name"],
        "world_size": facts["world_size"],
        "nodes": facts["nodes"],
        "machines": _one_or_all(
            [len(run.place["nodes"]) for run in runs if run.is_compared and run.place["nodes"]]
        ),
        "steps": facts["steps"],
        "measured_steps": facts["measured_steps"],
        "repeats": min(strategies.values(), default=0),
        "versions": {name: _one_or_all(found) for name, found in sorted(versions.items())},
    }


def _remarks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    finished = [row for row in rows if is_compared(row) and row["status"] != TRACED]
    traced = [row["run"] for row in rows if row["status"] == TRACED]
    remarks = [f"{', '.join(traced)}: {ONLY_TRACES}"] if traced else []
    remarks += [ON_CPU] if any(row["device_type"] == "cpu" for row in finished) else []
    for row in rows:
        if row["status"] == TRACED:
            remarks += [f"{row['run']}: {problem}" for problem in row["problems"]]
            continue
        if row["status"] != "finished":
            remarks.append(f"{row['run']} is {row['status']} and not ranked: {row['ending']}")
            continue
        if row["degenerate"]:
            why = say_degenerate(row["missing_dimensions"])
            remarks.append(f"{row['run']} is not compared: {why} ({row['layout'] or 'unknown layout'})")
        if row["missing"] or row["problems"]:
            lacks = [*(f"{name} is missing" for name in row["missing"]), *row["problems"]]
            remarks.append(f"{row['run']} is not complete: {', '.join(lacks)}")
    untimed = [row for row in finished if row["step_time_ms_p50"] is None]
    if untimed:
        had = ", ".join(f"{row['run']} ({row['steps']} steps)" for row in untimed)
        remarks.append(
            f"no step of {had} was timed: the first {TRAINERS_OWN}, the profiled ones and the one after them never "
            "are; train longer to know the speed"
        )
    for layout, names in find_repeated_layouts(finished).items():
        remarks.append(f"{' and '.join(names)} have the same layout, {layout}: they are repeats of one thing")
    strategies = Counter(name_variant(row) for row in finished)
    if strategies and min(strategies.values()) == 1:
        remarks.append(ONE_REPEAT)
    return remarks


def _say_places(runs: Sequence[RunRecord]) -> list[str]:
    """Which nodes, where the runs were not all on the same."""
    found = {
        run.name: ", ".join(run.place["nodes"]) for run in runs if run.is_compared and run.place["nodes"]
    }
    if len(set(found.values())) < 2:
        return []
    return [f"on different nodes: {'; '.join(f'{name} on {nodes}' for name, nodes in found.items())}"]


def _names(values: Sequence[str | None]) -> str:
    found = _one_or_all([value for value in values if value])
    return ", ".join(found) if isinstance(found, list) else found or "unnamed"


def _one_or_all(values: Sequence[Any]) -> Any:
    """The value on which all agree, or the list of the distinct ones in order; None when there is none."""
    distinct = [value for i, value in enumerate(values) if value not in values[:i]]
    return distinct[0] if len(distinct) == 1 else distinct or None


def _plain(value: Any) -> Any:
    """Without numbers that JSON does not know."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
