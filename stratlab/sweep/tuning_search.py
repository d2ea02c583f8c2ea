"""Search coordinate by coordinate: vary one knob at a time and keep the best value.

`search` has no side effects: the same measurements give the same choice. The other functions list the knobs of a
strategy, and turn a combination of knobs into a release: short, without a profile, in a comparison of its own.
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
"""Knobs in which a candidate differs from the strategy's defaults; empty = the defaults."""


@dataclass(frozen=True)
class TuningMetric:
    """Describe a metric. `key`: column of a report; `unit`: for messages; `highest`: the highest value is best."""

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
    """Hold a candidate's measurements: one value for each repeat, or no values and the reason."""

    values: tuple[float, ...]
    why: str = ""

    @property
    def value(self) -> float | None:
        return statistics.median(self.values) if self.values else None


@dataclass(frozen=True)
class Lead:
    """State how much better one candidate is than another, in percent of the other, with the noise in percent."""

    lead_pct: float
    noise_pct: float
    measured_noise: bool
    """False without repeats; `noise_pct` is then the smallest lead that counts."""

    @property
    def is_real(self) -> bool:
        return self.lead_pct > self.noise_pct


@dataclass(frozen=True)
class Search:
    """Hold the state of a search: the tried knobs in order, the best, the next to try; empty = the search has ended."""

    tried: tuple[tuple[Knobs, MeasuredCandidate], ...]
    best: Knobs
    following: tuple[Knobs, ...]
    not_tried: tuple[Knobs, ...] = ()
    """Single values that exceeded the number of candidates."""


def name_knobs(knobs: Knobs) -> str:
    """Name knobs independently of their order."""
    return ",".join(f"{name}={format_fact(knobs[name])}" for name in sorted(knobs))


def search(
    values: Mapping[str, Sequence[Any]],
    measured: Mapping[str, MeasuredCandidate],
    most: int,
    metric: TuningMetric,
) -> Search:
    """Follow a search up to its first unmeasured candidate; take the noise from the repeats so far.

    Args:
        values: knob -> its values to try, in the order of the search.
        measured: `name_knobs` of a candidate -> its measurements; other candidates have not run yet.
        most: number of candidates in all.
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
    """Return the spread of the repeats of one candidate; None without repeats."""
    return build_band([measured.values for _, measured in tried])


def compute_lead(
    one: MeasuredCandidate, other: MeasuredCandidate, metric: TuningMetric, band: Band | None
) -> Lead | None:
    """Return how much better `one` is than `other`; None if one of them has no value.

    Relative to 0, any other value is 100 % better or worse. Without repeats a lead below 2 % does not count, as in a
    comparison (compare/winners.py).
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
"""The knob that is never tuned: another type of the reduction rounds differently and makes runs incomparable."""


def find_strategy(chart: Path) -> str:
    """Return the strategy that a chart runs; "" if its values do not name one."""
    content = yaml.safe_load((chart / "values.yaml").read_text()) or {}
    return str((content.get("run") or {}).get("config", {}).get("strategy") or "")


def list_knobs(strategy: str) -> list[str]:
    """Return the tunable knobs of a strategy, from the table of strategies."""
    row = STRATEGIES.get(strategy)
    return [name for name in row.knobs if name != ROUNDING] if row else []


def check_knobs(sweep: Sweep, folder: Path) -> None:
    """Check that each knob belongs to its strategy.

    Args:
        folder: folder of the sweep's file.

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
            continue  # another message covers a chart that is missing, or not in the matrix
        own = list_knobs(strategy)
        allowed = f"it has {', '.join(own)}" if own else "it has no knobs: leave it out"
        for name in knobs:
            if name == ROUNDING:
                problems.append(
                    f"tune: {chart}: {name} cannot be tuned: it changes the rounding and makes runs incomparable; set "
                    f"run.config.{name} for all strategies, or leave it out [SL-tune-rounding]"
                )
            elif name not in own:
                problems.append(
                    f"tune: {chart}: {name} is not a knob of {strategy}, {allowed} [SL-tune-no-knob]"
                )
    if problems:
        raise cannot_start(problems)


AS_IT_COMES = "defaults"
NOT_OF_A_SHORT_RUN = ("epochs", "profile_first_step", "target_accuracy_pct", "target_perplexity")
"""Settings of the comparison that have no meaning in a short run, or contradict it."""


def name_tuning(comparison: str) -> str:
    """Return the name of the comparison that the candidates' runs form."""
    return f"{comparison}-tuning"


def build_candidate(base: Release, tune: Tune, comparison: str, knobs: Knobs) -> list[Release]:
    """Build the releases of one candidate, one for each repeat.

    Args:
        base: release of the comparison: the combination to tune.
        comparison: comparison of `base`.
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
    """Return the releases of the comparison with the winning knobs, under the same names.

    Args:
        chosen: name of a combination's first release -> knobs.
        names: name of a release -> name of its combination's first release.
    """
    return [
        replace(release, values=set_config(release.values, chosen.get(names[release.name], {})))
        for release in releases
    ]


def set_config(values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a chart with these settings of `run.config`."""
    run = values.get("run", {})
    return {**values, "run": {**run, "config": {**run.get("config", {}), **config}}}


def name_candidate(base: str, knobs: Knobs) -> str:
    """Return `<combination>-defaults`, or the knobs as words; with a hash if the name is too long."""
    words = re.sub(r"[^a-z0-9]+", "-", name_knobs(knobs).lower()).strip("-") or AS_IT_COMES
    room = LONGEST_NAME - len("-r100")
    name = f"{base}-{words}"
    if len(name) <= room and not re.search(r"-r\d+$", name):
        return name
    mark = hashlib.sha256(f"{base} {name_knobs(knobs)}".encode()).hexdigest()[:HASH_LENGTH]
    return f"{base[: room - HASH_LENGTH - 1].rstrip('-')}-{mark}"
