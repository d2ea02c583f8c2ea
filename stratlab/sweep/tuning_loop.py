"""Tune each strategy by short runs before the compared runs.

`tune_strategies` runs and measures candidates, round by round, until every search (tuning_search.py) has ended. A JSON
record of it is stored next to the runs of the comparison (read by compare/run_sources.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stratlab import UserError
from stratlab.compare.run_sources import keep_tuning
from stratlab.progress import SweepDisplay
from stratlab.sweep.definition import Sweep, Tune
from stratlab.sweep.planned_release import Planned, Release, build_sweep_plan, check_settings, expand
from stratlab.sweep.state import ENDED, State
from stratlab.sweep.tuning_search import (
    METRICS,
    MeasuredCandidate,
    Search,
    TuningMetric,
    apply_choice,
    build_candidate,
    check_knobs,
    compute_lead,
    find_band,
    find_strategy,
    list_knobs,
    name_knobs,
    name_tuning,
    search,
)
from stratlab.wording import format_count

ORIGIN = ("backend", "device", "hardware", "world_size", "nodes", "steps", "measured_steps", "versions")


def build_record(
    tune: Tune,
    comparison: str,
    combinations: Mapping[str, Sequence[Release]],
    strategies: Mapping[str, str],
    searches: Mapping[str, Search],
    report: Mapping[str, Any],
) -> dict[str, Any]:
    """Build the record.

    Args:
        combinations: name of the first release -> this release and its repeats, of the comparison.
        strategies: name of a chart -> its strategy.
        searches: name of the first release -> its search, if it was tuned.
        report: report of the candidates' comparison.

    Returns:
        comparison; tuning (the name of the candidates' comparison); metric: {name, key, unit, highest}; steps, repeats,
        candidates of the sweep's file; origin: as in a report; searches: [{strategy, point, runs, tried, not_tried,
        chosen, why_not}]. `tried` is [{knobs, runs, values, value, why, lead_pct, noise_pct, measured_noise}] in the
        order of the search. Its first entry has the defaults, and leads are relative to it. `not_tried`: [knobs],
        values that exceeded the number of candidates; `chosen`: knobs; `why_not`: why no value was tried.
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
                **_record_search(searches.get(name), releases[0], tune, comparison, strategies),
            }
            for name, releases in combinations.items()
        ],
    }


def _record_search(
    found: Search | None, base: Release, tune: Tune, comparison: str, strategies: Mapping[str, str]
) -> dict[str, Any]:
    if found is None:
        strategy = strategies[base.strategy]
        why_not = f"the sweep's file has no knobs for {strategy}" if list_knobs(strategy) else ""
        return {"tried": [], "not_tried": [], "chosen": {}, "why_not": why_not}
    as_it_comes, band, metric = found.tried[0][1], find_band(found.tried), METRICS[tune.metric]
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
        "why_not": "its candidates gave no measurement" if nothing_works else "",
    }


def say_search(found: Search, metric: TuningMetric) -> str:
    """Format the choice first, then the others: `as it comes, 98.2 samples per s; static_graph=true 30`."""
    ordered = sorted(found.tried, key=lambda entry: entry[0] != found.best)
    parts = []
    for knobs, measured in ordered:
        said = f"out ({measured.why})" if measured.value is None else f"{measured.value:.4g}"
        parts.append(f"{name_knobs(knobs) or 'as it comes,'} {said}")
    parts[0] += f" {metric.unit}" if ordered[0][1].value is not None else ""
    if found.not_tried:
        parts.append(f"not tried: {', '.join(map(name_knobs, found.not_tried))}")
    return "; ".join(parts)


def read_measured(
    names: Sequence[str],
    rows: Mapping[str, Mapping[str, Any]],
    said: Mapping[str, str],
    metric: TuningMetric,
    disturbed: Mapping[str, Any],
) -> MeasuredCandidate:
    """Return the measurements of a candidate.

    Args:
        names: its runs.
        rows: of the report of the candidates' comparison.
        said: run -> how it ended, from the state of the sweep.
        disturbed: run -> other programs on its machine, or "none".
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
            why = f"it needed {row['attempts']} attempts, so that its times include another start"
        elif disturbed.get(name, "none") not in ("none", "unknown"):
            why = f"{disturbed[name]} ran on its machine at the same time"
        elif row.get(metric.key) is None:
            why = f"{metric.key} was not measured"
        if why:
            return MeasuredCandidate((), f"{name}: {why}" if len(names) > 1 else why)
        assert row
        values.append(float(row[metric.key]))
    return MeasuredCandidate(tuple(values))


def find_disturbed(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return run -> programs that ran at the same time, from a report; empty if no run was disturbed."""
    differences = (report.get("fairness") or {}).get("differences") or []
    return next((entry["values"] for entry in differences if entry["field"] == "runs beside it"), {})


class SweepTarget(Protocol):
    """Define the operations of a sweep's target: a cluster or this machine."""

    def bring(
        self, plan: Sequence[Planned], state: State, *, retry_failed: bool, stop_on_failure: bool
    ) -> tuple[State, list[str]]:
        """Bring unfinished releases to their end; return the state, and sentences about unknown ends.

        Raises:
            UserError: a release must not change, or the target lacks a resource.
        """

    def compare(
        self,
        plan: Sequence[Planned],
        comparison: str,
        output: Path,
        tuning: Mapping[str, Any] | None,
        varied: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return the report of a comparison, and write it to `output`.

        Args:
            tuning: how its strategies were tuned; stored next to its runs.
            varied: settings that differ on purpose between its runs; stored next to them.

        Raises:
            UserError, ClusterError: the runs cannot be compared.
        """


@dataclass(frozen=True)
class Workbench:
    """Hold the inputs of a tuning: the sweep's file and its folder, helm, and the receiver of progress."""

    sweep: Sweep
    folder: Path
    helm: Path
    display: SweepDisplay

    @property
    def tune(self) -> Tune:
        assert self.sweep.tune, "nothing is tuned"
        return self.sweep.tune

    @property
    def combinations(self) -> dict[str, list[Release]]:
        """Return the name of the first release of each combination -> this release and its repeats."""
        found: dict[str, list[Release]] = {}
        for release in expand(self.sweep):
            found.setdefault(repr(sorted(release.point.items())), []).append(release)
        return {releases[0].name: releases for releases in found.values()}


def check_candidates(bench: Workbench) -> str:
    """Check that charts and trainer accept each value to try, on its own; return why the trainer is unavailable, or "".

    Raises:
        UserError: with one line per refused value.
    """
    check_knobs(bench.sweep, bench.folder)
    releases: list[Release] = []
    for combination, (base, *_) in bench.combinations.items():
        bench.display.pass_by(f"checking the candidates of {combination}")
        knobs = bench.tune.knobs.get(base.strategy)
        alone = [{name: value} for name, values in (knobs or {}).items() for value in values]
        for each in [{}, *alone] if knobs is not None else []:
            releases += build_candidate(base, bench.tune, bench.sweep.comparison, each)[:1]
    plan = build_sweep_plan(bench.sweep, bench.folder, bench.helm, bench.display.pass_by, releases)
    reason, _ = check_settings(plan, os.environ)
    return reason


def tune_strategies(
    bench: Workbench, place: SweepTarget, state: State, output: Path, *, retry_failed: bool
) -> tuple[list[Release], dict[str, Any]]:
    """Tune every combination that has knobs to try; runs that have ended are not repeated.

    Args:
        state: state of the tuning.
        output: folder of the candidates' report and of the record, tuning.json, written before the compared runs.

    Returns:
        the releases of the comparison with the chosen knobs, and the record.

    Raises:
        UserError, ClusterError: the end of a candidate is unknown, or the candidates cannot be compared; the same
        command
            continues.
    """
    tune, comparison, display = bench.tune, bench.sweep.comparison, bench.display
    metric, combinations = METRICS[tune.metric], bench.combinations
    bases = {name: each[0] for name, each in combinations.items() if each[0].strategy in tune.knobs}
    measured: dict[str, dict[str, MeasuredCandidate]] = {name: {} for name in bases}
    report: Mapping[str, Any] = {}
    told: set[str] = set()
    while True:
        searches = {
            name: search(tune.knobs[base.strategy], measured[name], tune.candidates, metric)
            for name, base in bases.items()
        }
        for name, found in searches.items():
            if not found.following and name not in told:
                told.add(name)
                display.say(f"{name} is tuned: {say_search(found, metric)}")
        asked = [
            (name, knobs, build_candidate(bases[name], tune, comparison, knobs))
            for name, found in searches.items()
            for knobs in found.following
        ]
        if not asked:
            break
        releases = [release for *_, candidate in asked for release in candidate]
        tried = "; ".join(f"{name} {name_knobs(knobs) or 'as it comes'}" for name, knobs, _ in asked)
        display.say(f"tuning, {format_count(len(releases), 'run')}: {tried}")
        plan = build_sweep_plan(bench.sweep, bench.folder, bench.helm, display.pass_by, releases)
        state, problems = place.bring(plan, state, retry_failed=retry_failed, stop_on_failure=False)
        entries = {release.name: state.releases.get(release.name) for release in releases}
        problems += [
            f"{name}: has not ended [SL-candidate-not-ended]"
            for name, each in entries.items()
            if not each or each.stage not in ENDED
        ]
        if problems:
            unfinished = "the tuning has not ended; repeat the same command to continue:"
            raise UserError("\n  ".join([unfinished, *problems]))
        if any(entry.stage == "succeeded" for entry in state.releases.values()):
            report = place.compare(plan, name_tuning(comparison), output, None)
        rows = {row["run"]: row for row in report.get("runs", [])}
        said = {name: entry.sentence for name, entry in entries.items() if entry}
        for name, knobs, candidate in asked:
            names = [each.name for each in candidate]
            result = read_measured(names, rows, said, metric, find_disturbed(report))
            measured[name][name_knobs(knobs)] = result
            value = f"out: {result.why}" if result.value is None else f"{result.value:.4g} {metric.unit}"
            display.say(f"{names[0]}: {value}")
    charts = {each[0].strategy for each in combinations.values()}
    strategies = {name: find_strategy(bench.folder / bench.sweep.charts / name) for name in charts}
    record = build_record(tune, comparison, combinations, strategies, searches, report)
    if report:  # without a report in the folder, the next start must write one
        output.mkdir(parents=True, exist_ok=True)
        keep_tuning(output, record)
    first = {release.name: name for name, releases in combinations.items() for release in releases}
    chosen = {name: found.best for name, found in searches.items()}
    return apply_choice(expand(bench.sweep), chosen, first), record
