"""Explain why one run takes longer per step than another: pairs with a baseline, with parts that sum to the difference.

step_difference   one step of each, in parts, and the two subtracted.
causes            the main cause, its fix, and the sentence of a pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratlab import UserError
from stratlab.compare.causes import (
    CPU_ORIGIN,
    NOT_TRACED,
    build_sentence,
    find_main_cause,
    find_remedy,
    format_ms,
    list_busy,
)
from stratlab.compare.fairness import SETTINGS, Fairness
from stratlab.compare.run_rows import Rows, RunRow
from stratlab.compare.step_difference import TracedStep, build_differences, build_traced_step
from stratlab.compare.variants import UNKNOWN, find_typical
from stratlab.compare.winners import LEAST_LEAD_PCT, Band
from stratlab.wording import name_allowed

OWN = "runs"
DETERMINED, NOT_DETERMINED = "determined", "not determined"
MOST_UNEXPLAINED = 0.5
"""Share of the difference: with less of it unexplained, a cause may be named."""
Row = Mapping[str, Any]


def build_attribution(
    rows: Rows,
    analyses: Mapping[str, Mapping[str, Any]],
    fairness: Fairness,
    variants: Sequence[Sequence[str]],
    band: Band | None,
    baseline: str | None = None,
) -> dict[str, Any]:
    """Compare every variant (of repeats the median one) with the baseline.

    Without `baseline` it is the fastest run of each group of comparable runs. Runs without comparable ones are paired
    with the fastest run of all.

    Args:
        rows: `runs` of the report.
        analyses: run -> its analysis/report.json.
        variants: names of the runs that are repeats of each other.
        band: of the step times; None = no repeats.
        baseline: name of a run.

    Returns:
        baseline (the given one, or None), pairs, and not_attributed: [{run, why}].

    Raises:
        UserError: `baseline` is not a finished run with step times.
    """
    compared = [row for row in rows if row.is_compared]
    kinds = {row.run: _find_kind(row) for row in compared}
    measured = {row.run: row.recorded_step_ms if row.is_foreign else row.step_time_ms_p50 for row in compared}
    steps = {run: ms for run, ms in measured.items() if ms}
    if baseline is not None:
        baseline = _check_baseline(baseline, list(steps))
    groups = [[name for name in group if name in steps] for group in fairness.groups]
    typical = _choose_typical(groups, variants, steps, baseline)
    traced = {name: build_traced_step(analyses.get(name) or {}) for group in typical for name in group}
    missing = [
        {"run": row.run, "baseline": None, "why": "its traces have no labels of steps"}
        for row in rows
        if row.is_foreign and row.run not in steps
    ]
    busy = list_busy(compared)
    pairs = []
    for run, base in _pair_up_kinds(typical, kinds, steps, baseline):
        mine, other = traced[run], traced[base]
        if isinstance(mine, str) or isinstance(other, str):
            why = f"{run} {mine}" if isinstance(mine, str) else f"{base} {other}"
            missing.append({"run": run, "baseline": base, "why": why})
        elif mine.source != other.source:
            why = f"{run} has {mine.source} traces, {base} has {other.source} traces"
            missing.append({"run": run, "baseline": base, "why": why})
        else:
            is_own = kinds[run] == kinds[base] == OWN
            run_ms, base_ms = (steps[run], steps[base]) if is_own else (mine.step_ms, other.step_ms)
            ends = (run, mine, run_ms), (base, other, base_ms)
            differing = _find_differing(run, base, fairness)
            disturbed = [name for name in (run, base) if name in busy]
            pairs.append(build_pair(*ends, differing, band if is_own else None, is_own, disturbed))
    return {"baseline": baseline, "pairs": pairs, "not_attributed": missing}


def split_busy(pairs: Sequence[Row]) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return (pairs with comparable times, pairs measured while other work kept the CPU busy)."""
    return [p for p in pairs if p["times_comparable"]], [p for p in pairs if not p["times_comparable"]]


def _check_baseline(asked: str, names: Sequence[str]) -> str:
    """Return the run that the user names: by its name, or by the end of it, as pages and tables show it."""
    ending = [name for name in names if name.endswith(f"-{asked}")]
    if asked in names or len(ending) == 1:
        return asked if asked in names else ending[0]
    wish = "expected a finished run of this comparison:"
    known = f"{wish} none"
    if names:
        known = name_allowed(asked, list(names), wish, "that `stratlab list` shows as finished")
    raise UserError(f"--baseline {asked}: {known} [SL-baseline-unknown]")


def build_pair(
    run: tuple[str, TracedStep, float],
    base: tuple[str, TracedStep, float],
    differing: Sequence[str] = (),
    band: Band | None = None,
    settings_known: bool = True,
    busy: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the attribution of one pair.

    Args:
        run, base: name, traced step, and median of the measured step times in ms.
        differing: facts that forbid to compare them.
        settings_known: False = one of them has only traces; the steps are the recorded ones.
        busy: of the two, those whose times are not comparable.

    Returns:
        run, baseline, comparable, settings_known, differing, sources, origin, parts, times_comparable, late_rank,
        `remedy`, sentence, gap_kind and gap_label (of the run's own report). difference_ms is the sum of the ms of
        `parts`, difference_pct its share of the baseline. traced_difference_ms is the difference of the recorded
        steps, unexplained_ms the remaining difference, noise_ms None without repeats. no_cause is the reason if none
        can be named, or None; main_cause and cause_status (DETERMINED or NOT_DETERMINED) follow it.
    """
    (name, mine, ms), (base_name, other, base_ms) = run, base
    difference_ms = ms - base_ms
    parts = build_differences(mine, other, difference_ms)
    unexplained_ms = sum(row["ms"] for row in parts if row["cause"] == NOT_TRACED)
    noise_ms = band.of_difference(ms, base_ms) if band else None
    pair: dict[str, Any] = {
        "run": name,
        "baseline": base_name,
        "comparable": settings_known and not differing,
        "settings_known": settings_known,
        "differing": list(differing),
        "sources": sorted({mine.source, other.source}),
        "origin": _say_origin(mine, other, settings_known),
        "run_ms": ms,
        "baseline_ms": base_ms,
        "difference_ms": difference_ms,
        "difference_pct": 100 * difference_ms / base_ms,
        "traced_difference_ms": mine.step_ms - other.step_ms,
        "unexplained_ms": unexplained_ms,
        "noise_ms": noise_ms,
        "parts": parts,
        "late_rank": mine.late_rank,
        "gap_kind": mine.gap_kind,
        "gap_label": mine.gap_label,
        "times_comparable": not busy,
        "no_cause": _find_doubt(difference_ms, max(ms, base_ms), unexplained_ms, noise_ms, busy),
    }
    pair["main_cause"] = find_main_cause(pair) if pair["comparable"] else None
    pair["cause_status"] = DETERMINED if pair["main_cause"] else NOT_DETERMINED
    pair["remedy"] = find_remedy(pair)
    pair["sentence"] = build_sentence(pair)
    return pair


def _find_doubt(
    difference_ms: float,
    slower_ms: float,
    unexplained_ms: float,
    noise_ms: float | None,
    busy: Sequence[str],
) -> str | None:
    """Return why no cause may be named. The recorded steps must explain more of the measured difference than they leave
    open, or show beyond it: recording lengthens the steps that have more to record.
    """
    size = abs(difference_ms)
    if busy:
        return f"other work kept the machine of {' and '.join(busy)} busy, so CPU times are not comparable"
    if noise_ms is not None and size <= noise_ms:
        return f"repeats differ by up to {format_ms(noise_ms)} by chance"
    if noise_ms is None and 100 * size < LEAST_LEAD_PCT * slower_ms:
        return f"less than {LEAST_LEAD_PCT:g} % apart, too close for one repeat"
    if abs(unexplained_ms) >= MOST_UNEXPLAINED * size:
        recorded_ms = difference_ms - unexplained_ms
        direction = "" if recorded_ms * difference_ms >= 0 else " the other way round"
        return (
            f"the recorded steps differ by {format_ms(abs(recorded_ms))}{direction}, so "
            f"{format_ms(abs(unexplained_ms))} stay unexplained"
        )
    return None


def _find_kind(row: RunRow) -> str:
    """Return the kind of runs that are compared by default: runs of this lab, or traces without a run, by their
    source.
    """
    return f"{row.trace_source} traces" if row.is_foreign else OWN


def _pair_up_kinds(
    typical: Sequence[Sequence[str]],
    kinds: Mapping[str, str],
    steps: Mapping[str, float],
    baseline: str | None,
) -> list[tuple[str, str]]:
    """Return (run, baseline) of each kind, in the order of the runs."""
    pairs = []
    for kind in dict.fromkeys(kinds.values()):
        groups = [[name for name in group if kinds[name] == kind] for group in typical]
        names = [name for group in groups for name in group]
        fastest = baseline or min(names, key=lambda name: steps[name], default="")
        for group in filter(None, groups):
            best = baseline or min(group, key=lambda name: steps[name])
            pairs += [(name, best) for name in group if name != best]
            pairs += [(best, fastest)] if best != fastest and best in group else []
    return sorted(pairs, key=lambda pair: list(steps).index(pair[0]))


def _choose_typical(
    groups: Sequence[Sequence[str]],
    variants: Sequence[Sequence[str]],
    steps: Mapping[str, float],
    baseline: str | None,
) -> list[list[str]]:
    """Choose one run for each variant, in the group of comparable runs that holds most runs: the median of its repeats.

    Repeats with another seed are in groups of their own and only count for the noise.
    """
    chosen: list[list[str]] = [[] for _ in groups]
    for variant in variants:
        places = [(i, [name for name in group if name in variant]) for i, group in enumerate(groups)]
        with_baseline = [place for place in places if baseline in place[1]]
        place, names = next((p for p in with_baseline or places if p[1]), (0, []))
        if names:
            chosen[place].append(baseline if baseline and baseline in names else find_typical(names, steps))
    return chosen


def _find_differing(run: str, base: str, fairness: Fairness) -> list[str]:
    """Return facts that matter and keep the two apart; empty if they are in one group of the audit."""
    if any(run in group and base in group for group in fairness.groups):
        return []
    matters = [entry for entry in fairness.differences if entry.matters]
    ends = {e.field: [str(e.values.get(name, UNKNOWN)) for name in (run, base)] for e in matters}
    if UNKNOWN in ends.get(SETTINGS, []):  # a value that one of them does not record is not a difference
        return [field for field, (a, b) in ends.items() if UNKNOWN not in (a, b) and a != b]
    differing = [entry.field for entry in matters if entry.values.get(run) != entry.values.get(base)]
    return differing or [f"{entry.field} (unknown or not as it should be)" for entry in matters]


def _say_origin(mine: TracedStep, other: TracedStep, settings_known: bool) -> str:
    source = CPU_ORIGIN if mine.source == "cpu" else "GPU events"
    measured = "medians of the timed steps" if settings_known else "means of the recorded steps"
    counts = dict.fromkeys(f"{step.steps} steps on {step.ranks} ranks" for step in (mine, other))
    return f"parts: {source}; recorded: {' and '.join(counts)}; difference: {measured}"
