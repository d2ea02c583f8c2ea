"""Coordinate search: one knob at a time, the best is kept. No side effects; the same measurements, the same choice.

Also which knobs a strategy has, and a combination of knobs as a release: short, without a profile, in a comparison of
its own.
"""

from __future__ import annotations

import hashlib
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from stratlab.compare.winners import LEAST_LEAD_PCT, Band, build_band
from stratlab.sweep.definition import STRATEGY, Sweep, Tune, cannot_start
from stratlab.sweep.planned_release import HASH_LENGTH, LONGEST_NAME, Release
from stratlab.wording import format_fact
from stratlab_spec.strategies import STRATEGIES

Knobs = Mapping[str, Any]
"""Those in which a candidate differs from the strategy as it comes; empty = as it comes."""


@dataclass(frozen=True)
class TuningMetric:
    """`key`: in the rows of a comparison's report; `unit`: for sentences; `highest`: the highest value is best."""

    key: str
    unit: str
    highest: bool


METRICS = {
    "throughput": TuningMetric("samples_per_s", "samples per s", highest=True),
    "step_time": TuningMetric("step_time_ms_p50", "ms", highest=False),
    "memory": TuningMetric("peak_memory_gib", "GiB", highest=False),
}


@dataclass(frozen=True)
class MeasuredCandidate:
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

    tried: tuple[tuple[Knobs, MeasuredCandidate], ...]
    best: Knobs
    following: tuple[Knobs, ...]
    not_tried: tuple[Knobs, ...] = ()
    """Values, each alone, for which no candidate was left."""


def name_knobs(knobs: Knobs) -> str:
    """Equal for equal knobs, whatever their order."""
    return ",".join(f"{name}={format_fact(knobs[name])}" for name in sorted(knobs))


def search(
    values: Mapping[str, Sequence[Any]],
    measured: Mapping[str, MeasuredCandidate],
    most: int,
    metric: TuningMetric,
) -> Search:
    """Follows a search as far as it is measured. The noise is that of the repeats of what was tried by then.

    Args:
        values: knob -> what to try of it, in the order of the search.
        measured: `name_knobs` of a candidate -> what became of it; a candidate that is not in it was not run yet.
        most: candidates in all.
    """
    left_out: list[Knobs] = []
    best: Knobs = {}
    if "" not in measured:
        return Search((), best, ({},))
    tried: list[tuple[Knobs, MeasuredCandidate]] = [({}, measured[""])]
    for knob, options in values.items():
        room = most - len(tried)
        left_out += [{knob: option} for option in options[room:]]
        asked = [{**best, knob: option} for option in options[:room]]
        if unknown := tuple(each for each in asked if name_knobs(each) not in measured):
            return Search(tuple(tried), best, unknown)
        tried += [(each, measured[name_knobs(each)]) for each in asked]
        band = find_band(tried)
        for each in asked:
            result, best_result = measured[name_knobs(each)], measured[name_knobs(best)]
            lead = compute_lead(result, best_result, metric, band)
            is_first_to_work = result.value is not None and best_result.value is None
            best = each if (lead.is_real if lead else is_first_to_work) else best
    return Search(tuple(tried), best, (), tuple(left_out))


def find_band(tried: Sequence[tuple[Knobs, MeasuredCandidate]]) -> Band | None:
    """How far repeats of one candidate lie apart; None without repeats."""
    return build_band([measured.values for _, measured in tried])


def compute_lead(
    one: MeasuredCandidate, other: MeasuredCandidate, metric: TuningMetric, band: Band | None
) -> Lead | None:
    """How much better `one` is than `other`; None where one of them has no value. Of 0 there is no share: what is not 0
    is 100 % better or worse.

    Without repeats a lead below 2 % counts as none, as in a comparison (compare/winners.py).
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


ROUNDING = "reduce_dtype"
"""The one knob that is not tried: another type of the reduction is another rounding, and runs with it are no longer
comparable with the others."""


def find_strategy(chart: Path) -> str:
    """The strategy that a chart runs; "" where its values name none."""
    content = yaml.safe_load((chart / "values.yaml").read_text()) or {}
    return str((content.get("run") or {}).get("config", {}).get("strategy") or "")


def list_knobs(strategy: str) -> list[str]:
    """Those that may be tried, of the table of strategies."""
    row = STRATEGIES.get(strategy)
    return [name for name in row.knobs if name != ROUNDING] if row else []


def check_knobs(sweep: Sweep, folder: Path) -> None:
    """That each knob is one of the strategy that it is given for.

    Args:
        folder: of the sweep's file.

    Raises:
        UserError: with one line per mistake.
    """
    assert sweep.tune
    charts = {str(name): folder / sweep.charts / str(name) for name in sweep.matrix[STRATEGY]}
    strategies = {name: find_strategy(chart) for name, chart in charts.items() if chart.is_dir()}
    problems = []
    for chart, knobs in sweep.tune.knobs.items():
        strategy = strategies.get(chart, "")
        if not strategy:
            continue  # a chart that is not there, or not in the matrix, is told elsewhere
        own = list_knobs(strategy)
        allowed = f"it has {', '.join(own)}" if own else "it has none: leave it out"
        for name in knobs:
            if name == ROUNDING:
                problems.append(
                    f"tune: {chart}: {name} is not tried: it changes the rounding, and so what is compared; set "
                    f"run.config.{name} for all of them, or leave it out [SL-tune-rounding]"
                )
            elif name not in own:
                problems.append(
                    f"tune: {chart}: {name} is no knob of {strategy}, {allowed} [SL-tune-no-knob]"
                )
    if problems:
        raise cannot_start(problems)


AS_IT_COMES = "defaults"
NOT_OF_A_SHORT_RUN = ("epochs", "profile_first_step", "target_accuracy_pct", "target_perplexity")
"""Settings of the comparison that mean nothing in a run of some steps, or contradict them."""


def name_tuning(comparison: str) -> str:
    """The comparison that the runs of the candidates form."""
    return f"{comparison}-tuning"


def build_candidate(base: Release, tune: Tune, comparison: str, knobs: Knobs) -> list[Release]:
    """The releases of one candidate, one for each repeat.

    Args:
        base: of the comparison: the combination that is tuned.
        comparison: that of `base`.
    """
    short = {
        "steps": tune.steps,
        "warmup_steps": 0,
        "profile_steps": 0,
        "comparison": name_tuning(comparison),
    }
    values = set_config(base.values, {**short, **knobs})
    name = name_candidate(base.name, knobs)
    names = [name + (f"-r{repeat}" if repeat > 1 else "") for repeat in range(1, tune.repeats + 1)]
    return [
        replace(base, name=each, repeat=repeat, values=values, without=NOT_OF_A_SHORT_RUN)
        for repeat, each in enumerate(names, 1)
    ]


def apply_choice(
    releases: Sequence[Release], chosen: Mapping[str, Knobs], names: Mapping[str, str]
) -> list[Release]:
    """The releases of the comparison with the knobs that won, under the same names.

    Args:
        chosen: name of a combination's first release -> knobs.
        names: name of a release -> that of the first of its combination.
    """
    return [
        replace(release, values=set_config(release.values, chosen.get(names[release.name], {})))
        for release in releases
    ]


def set_config(values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a chart with these settings of `run.config`."""
    run = values.get("run", {})
    return {**values, "run": {**run, "config": {**run.get("config", {}), **config}}}


def name_candidate(base: str, knobs: Knobs) -> str:
    """`<combination>-defaults`, or with its knobs as words; with a hash of them where that is too long."""
    words = re.sub(r"[^a-z0-9]+", "-", name_knobs(knobs).lower()).strip("-") or AS_IT_COMES
    room = LONGEST_NAME - len("-r100")
    name = f"{base}-{words}"
    if len(name) <= room and not re.search(r"-r\d+$", name):
        return name
    mark = hashlib.sha256(f"{base} {name_knobs(knobs)}".encode()).hexdigest()[:HASH_LENGTH]
    return f"{base[: room - HASH_LENGTH - 1].rstrip('-')}-{mark}"
