"""The loop of a tuning: candidates are run and measured, round by round, until every search has ended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratlab.compare.reading.kept_tuning import keep_tuning
from stratlab.sweep.definition import Sweep
from stratlab.sweep.matrix import Release, expand
from stratlab.sweep.planned_release import build_plan, check_settings
from stratlab.sweep.state import ENDED, State
from stratlab.sweep.sweep_display import SweepDisplay
from stratlab.sweep.sweep_place import Place
from stratlab.sweep.tuning.candidates import apply_choice, build_candidate, name_tuning
from stratlab.sweep.tuning.knobs import check_knobs, find_strategy
from stratlab.sweep.tuning.search import METRICS, Knobs, Measured, Search, name_knobs, search
from stratlab.sweep.tuning.tuning_record import build_record, find_disturbed, read_measured, say_search
from stratlab.sweep.tuning_definition import Tune
from stratlab.user_error import UserError


@dataclass(frozen=True)
class Workbench:
    """What a tuning works with: the sweep's file and its folder, helm, where it tells what it does."""

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
        """Name of the first release of each combination of the matrix -> that and its repeats."""
        found: dict[str, list[Release]] = {}
        for release in expand(self.sweep):
            found.setdefault(repr(sorted(release.point.items())), []).append(release)
        return {releases[0].name: releases for releases in found.values()}


def check_candidates(bench: Workbench) -> str:
    """That charts and trainer take every value to be tried, each alone; returns why the trainer was not asked, or "".

    Raises:
        UserError: with one line per value that is refused.
    """
    check_knobs(bench.sweep, bench.folder)
    releases: list[Release] = []
    for name, (base, *_) in bench.combinations.items():
        bench.display.pass_by(f"checking what may be tried for {name}")
        for knobs in _list_alone(bench.tune, base.strategy):
            releases += build_candidate(base, bench.tune, bench.sweep.comparison, knobs)[:1]
    plan = build_plan(bench.sweep, bench.folder, bench.helm, bench.display.pass_by, releases)
    return check_settings(plan, os.environ)


def tune_strategies(
    bench: Workbench, place: Place, state: State, output: Path, *, retry_failed: bool
) -> tuple[list[Release], dict[str, Any]]:
    """Tunes every combination that has knobs to try. What the state knows to have ended is not run again.

    Args:
        state: of the tuning.
        output: where the report of the candidates goes, and the record, tuning.json, before a run of the comparison.

    Returns:
        the releases of the comparison with the knobs that were chosen, and the record.

    Raises:
        UserError, ClusterError: the end of a candidate is not known, or the candidates cannot be compared; the same
            command goes on.
    """
    tune, comparison = bench.tune, bench.sweep.comparison
    combinations = bench.combinations
    bases = {name: each[0] for name, each in combinations.items() if each[0].strategy in tune.knobs}
    measured: dict[str, dict[str, Measured]] = {name: {} for name in bases}
    report: Mapping[str, Any] = {}
    told: set[str] = set()
    while True:
        searches = {name: _search(tune, base, measured[name]) for name, base in bases.items()}
        ended = {name for name, found in searches.items() if not found.following}
        for name in sorted(ended - told, key=list(bases).index):
            bench.display.say(f"{name} is tuned: {say_search(searches[name], METRICS[tune.metric])}")
        told |= ended
        asked = [(name, knobs) for name, found in searches.items() for knobs in found.following]
        if not asked:
            break
        releases = [
            release
            for name, knobs in asked
            for release in build_candidate(bases[name], tune, comparison, knobs)
        ]
        bench.display.say(_say_round(asked, len(releases)))
        plan = build_plan(bench.sweep, bench.folder, bench.helm, bench.display.pass_by, releases)
        state, problems = place.bring(plan, state, retry_failed=retry_failed, stop_on_failure=False)
        entries = {release.name: state.releases.get(release.name) for release in releases}
        problems += [
            f"{name}: has not ended [SL-candidate-not-ended]"
            for name, each in entries.items()
            if not each or each.stage not in ENDED
        ]
        if problems:
            why = "\n  ".join(["the tuning is not at its end, the same command goes on:", *problems])
            raise UserError(why)
        if any(entry.stage == "succeeded" for entry in state.releases.values()):
            report = place.compare(plan, name_tuning(comparison), output, None)
        rows = {row["run"]: row for row in report.get("runs", [])}
        said = {name: entry.sentence for name, entry in entries.items() if entry}
        for name, knobs in asked:
            names = [each.name for each in build_candidate(bases[name], tune, comparison, knobs)]
            result = read_measured(names, rows, said, METRICS[tune.metric], find_disturbed(report))
            measured[name][name_knobs(knobs)] = result
            bench.display.say(f"{names[0]}: {_say_result(result, tune)}")
    charts = {each[0].strategy for each in combinations.values()}
    strategies = {name: find_strategy(bench.folder / bench.sweep.charts / name) for name in charts}
    record = build_record(tune, comparison, combinations, strategies, searches, report)
    if report:  # into a folder without a report none would be written at the next start
        output.mkdir(parents=True, exist_ok=True)
        keep_tuning(output, record)
    first = {release.name: name for name, releases in combinations.items() for release in releases}
    chosen = {name: found.best for name, found in searches.items()}
    return apply_choice(expand(bench.sweep), chosen, first), record


def _search(tune: Tune, base: Release, measured: Mapping[str, Measured]) -> Search:
    return search(tune.knobs[base.strategy], measured, tune.candidates, METRICS[tune.metric])


def _list_alone(tune: Tune, chart: str) -> list[Knobs]:
    """The strategy as it comes, then each value of each knob alone; nothing for what is not tuned."""
    knobs = tune.knobs.get(chart)
    if knobs is None:
        return []
    return [{}, *({name: value} for name, values in knobs.items() for value in values)]


def _say_round(asked: Sequence[tuple[str, Knobs]], runs: int) -> str:
    each = "; ".join(f"{name} {name_knobs(knobs) or 'as it comes'}" for name, knobs in asked)
    return f"tuning, {runs} run{'s' if runs > 1 else ''}: {each}"


def _say_result(result: Measured, tune: Tune) -> str:
    if result.value is None:
        return f"out: {result.why}"
    return f"{result.value:.4g} {METRICS[tune.metric].unit}"
