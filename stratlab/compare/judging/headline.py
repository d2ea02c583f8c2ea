"""The headline of a comparison: what its runs answer. Every place that shows a comparison begins with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stratlab.compare.judging.same_training import FIELD, build_difference, split_groups
from stratlab.compare.judging.scaling import FREE, name_series, say_scaling
from stratlab.compare.judging.winners import NAMES
from stratlab.run_directory.record import RunRecord

ONE_RUN = "one run, nothing to compare"
NO_RUN = "no finished run, nothing to compare"
PER_GROUP = "answered per group"
NOT = "not comparable"
Entries = Sequence[Mapping[str, Any]]


def build_headline(
    runs: Sequence[RunRecord],
    fairness: Mapping[str, Any],
    scaling: Entries,
    group_winners: Entries,
) -> dict[str, Any]:
    """The verdict of the audit, or what the runs answer although they differ.

    Runs whose losses disagree stay "not comparable": that is a finding.

    Args:
        fairness: of the audit.
        group_winners: of `winners.name_group_winners`.

    Returns:
        {verdict: that of the audit, ONE_RUN, NO_RUN, PER_GROUP, or "strong scaling" and its like; reason; answers:
        sentences, one for each series of runs and for each group}.
    """
    compared = [run for run in runs if run.is_compared]
    if len(compared) < 2:
        return {"verdict": ONE_RUN if compared else NO_RUN, "reason": _say_lonely(runs), "answers": []}
    answers = [*say_scaling(scaling), *map(_say_group, group_winners)]
    verdict, reason = fairness["verdict"], fairness["reason"]
    if verdict == NOT and not any(run.is_foreign for run in compared):
        apart = {e["field"] for e in fairness["differences"] if e["matters"] and not e["varied"]}
        answered = {name for group in group_winners for name in group["runs"]}
        if scaling and apart <= FREE:
            if finding := _find_disagreement(compared, fairness["pairs"], scaling):
                return {"verdict": NOT, "reason": finding, "answers": answers}
            verdict, reason = _name_kinds(scaling), _say_efficiency(scaling)
            answered |= {name for series in scaling for name in _list_members(series)}
        elif group_winners and FIELD not in apart:
            verdict = PER_GROUP
        if verdict != NOT and (alone := [run.name for run in compared if run.name not in answered]):
            answers.append(f"comparable with no other: {', '.join(alone)}")
    return {"verdict": verdict, "reason": reason, "answers": answers}


def _say_lonely(runs: Sequence[RunRecord]) -> str:
    """What became of the others."""
    told = [
        f"{run.name} is {'degenerate' if run.status == 'finished' else run.status}"
        for run in runs
        if not run.is_compared and run.status != "not a run"
    ]
    return "; ".join(["a comparison needs two finished runs", *told])


def _say_group(group: Mapping[str, Any]) -> str:
    best = [f"{NAMES[metric]}: {run}" for metric, run in group["winners"].items() if run]
    return f"comparable with each other: {', '.join(group['runs'])}; best: {', '.join(best) or 'nobody is named'}"


def _name_kinds(scaling: Entries) -> str:
    """`strong scaling`, `strong and weak scaling`."""
    return f"{' and '.join(sorted({series['kind'] for series in scaling}))} scaling"


def _say_efficiency(scaling: Entries) -> str:
    """`efficiency from 2 to 4 processes: ddp 75 %, fsdp 90 %`: of the largest number of processes of each series."""
    kinds = {series["kind"] for series in scaling}
    spans: dict[str, list[str]] = {}
    for series in scaling:
        last = series["points"][-1]
        own = last["scaling_efficiency_pct"]
        begin, pct = (
            ("single", last["efficiency_vs_single_pct"]) if own is None else (series["baseline"], own)
        )
        span = f"from {begin} to {last['world_size']} processes"
        label = f"{series['kind']}, {span}" if len(kinds) > 1 else span
        spans.setdefault(label, []).append(f"{name_series(series)} {pct:.0f} %")
    told = "; ".join(f"{span}: {', '.join(each)}" for span, each in spans.items())
    notes = dict.fromkeys(series["note"] for series in scaling if series["note"])
    return "; ".join([f"efficiency {told}", *notes])


def _list_members(series: Mapping[str, Any]) -> Iterator[str]:
    for point in series["points"]:
        yield from point["runs"]
    if series["single"]:
        yield from series["single"]["runs"]


def _find_disagreement(runs: Sequence[RunRecord], pairs: Entries, scaling: Entries) -> str:
    """Why a series is not one training; "" where each is. A larger global batch is another one by design."""
    for series in scaling:
        if series["kind"] != "strong":
            continue
        members = [*_list_members(series)]
        _, reference, judged = split_groups([members], runs, [dict(pair) for pair in pairs])
        if found := build_difference([members], reference, judged):
            return f"the runs differ in {FIELD}: {found['why']}"
    return ""
