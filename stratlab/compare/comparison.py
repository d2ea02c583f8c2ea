"""The content of report.json: the runs' measurements, whether the runs are comparable, and the conclusions.

compare          all of it, in the order in which one part needs another.
build_headline   the answers of the runs: every output of a comparison begins with it.
say_tuning       the result of a tuning, in sentences.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from stratlab import UserError
from stratlab.compare.attribution import build_attribution
from stratlab.compare.causes import build_flags
from stratlab.compare.efficiency import FREE, build_scaling, build_sharding, name_series, say_scaling
from stratlab.compare.fairness import (
    FIELD,
    NOT_COMPARABLE,
    Fairness,
    audit,
    build_difference,
    loss_agreement,
    say_degenerate,
    split_groups,
)
from stratlab.compare.placement import ComparedRun, apply_place
from stratlab.compare.run_rows import Rows, apply_others, build_row
from stratlab.compare.run_sources import NOT_IN_MLFLOW, apply_tuning
from stratlab.compare.search_ranking import build_search
from stratlab.compare.variants import build_variants, check_varied, list_ways, name_variants, name_way
from stratlab.compare.winners import (
    LEAST_LEAD_PCT,
    ON_CPU,
    ONE_REPEAT,
    Winner,
    build_goals,
    build_noise,
    build_pareto,
    list_best,
    name_group_winners,
    name_winners,
    write_winners,
)
from stratlab.wording import format_fact, format_number
from stratlab_spec.schedule import WARM_UP_STEPS

ONE_RUN = "one run, nothing to compare"
NO_RUN = "no finished run, nothing to compare"
PER_GROUP = "answered per group"
TUNED_ON_CPU = "tuned on CPU: these are CPU times, and choose nothing for GPUs"
ONLY_TRACES = (
    "traces of another program; a step is the mean of the recorded ones, and losses, samples per second and memory are "
    "not known"
)
ORIGIN = {
    **{name: name for name in ("backend", "world_size", "nodes", "steps", "measured_steps")},
    "device": "device_type",
    "hardware": "device_name",
}
"""Names in the origin -> in the rows."""
Series = Sequence[Mapping[str, Any]]
GroupWinners = Mapping[tuple[str, ...], Sequence[Winner]]


def compare(
    runs: Sequence[ComparedRun],
    *,
    baseline: str | None = None,
    memory_limit_gib: float | None = None,
    tuning: Mapping[str, Any] | None = None,
    varied: Sequence[str] = (),
) -> dict[str, Any]:
    """Return all facts about the runs of a comparison; every value is plain JSON.

    Args:
        baseline: the run that the others are explained against; None = the fastest.
        memory_limit_gib: of one device, for the goal "fastest within"; None = no such goal.
        tuning: of `run_sources.read_tuning`; None = the strategies were not tuned by a sweep.
        varied: settings in which the runs differ on purpose: the audit allows them, and results are ranked over them.

    Raises:
        UserError: there is no run, no such baseline, the limit is invalid, or a setting cannot be varied.
    """
    records = apply_tuning(apply_place([run for run in runs if run.status != "not a run"]), tuning)
    if not records:
        why = "; ".join(f"{run.name}: {run.ending}" for run in runs)
        raise UserError(f"no run to compare{': ' if why else ''}{why} [SL-nothing-to-compare]")
    check_varied(varied, records)
    agreement = loss_agreement(records)
    fairness = audit(records, agreement["pairs"], varied)
    repeated = build_variants(records)
    variants, names = [[run.name for run in group] for group in repeated], name_variants(repeated)
    rows = [
        build_row(run, name_way(run.name, fairness.differences, fairness.ways), names.get(run.name, ""))
        for run in records
    ]
    band, noise = build_noise(rows, variants)
    scaling = build_scaling(records, rows, band)
    sharding = build_sharding(records)
    flags = build_flags(rows)
    analyses = {run.name: run.analysis for run in records}
    attribution = build_attribution(rows, analyses, fairness, variants, band, baseline)
    for row in rows:
        apply_others(row, noise, scaling, sharding, attribution)
    group_winners = name_group_winners(rows, fairness)
    search = build_search(records, rows, fairness, varied)
    return _plain(
        {
            "schema_version": 2,
            "comparison": _name_comparison(records),
            "headline": build_headline(records, fairness, scaling, group_winners, names),
            "origin": _describe_origin(records, rows),
            "runs": rows,
            "not_runs": [
                {"folder": str(run.folder), "why": run.ending} for run in runs if run.status == "not a run"
            ],
            "fairness": {name: value for name, value in vars(fairness).items() if name != "pairs"},
            "loss_agreement": {**agreement, "pairs": fairness.pairs},
            **write_winners(name_winners(rows, "" if fairness.is_comparable else fairness.reason)),
            "group_winners": [{"runs": [*group], **write_winners(w)} for group, w in group_winners.items()],
            "attribution": attribution,
            "noise": noise,
            "warmup": {row.run: row.warmup for row in rows},
            "flags": flags,
            "times_comparable": all(flag["times_comparable"] for flag in flags),
            "scaling": scaling,
            "sharding": sharding,
            "pareto": build_pareto(rows, fairness.groups),
            "goals": build_goals(rows, fairness, memory_limit_gib),
            "tuning": tuning,
            "search": search,
            "remarks": [
                *_list_remarks(rows, is_search=bool(search and len(search["points"]) > 1)),
                *_list_other_ways(fairness, varied),
                *_list_places(records),
                *say_tuning(tuning),
                *_list_unknown_tuning(records),
            ],
        }
    )


def _plain(value: Any) -> Any:
    """Return the value as JSON holds it, without numbers that JSON does not have."""
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def build_headline(
    runs: Sequence[ComparedRun],
    fairness: Fairness,
    scaling: Series,
    group_winners: GroupWinners,
    names: Mapping[str, str],
) -> dict[str, Any]:
    """Return the verdict of the audit, or the answers of runs that differ.

    Runs whose losses disagree stay "not comparable": that is a finding.

    Args:
        names: of `name_variants`.

    Returns:
        {verdict, reason, answers}. The verdict is the audit's, ONE_RUN, NO_RUN, PER_GROUP, or "strong scaling" and
        its like; answers are sentences, one for each series of runs and for each group.
    """
    compared = [run for run in runs if run.is_compared]
    if len(compared) < 2:
        others = [
            f"{run.name} is {'degenerate' if run.status == 'finished' else run.status}"
            for run in runs
            if not run.is_compared and run.status != "not a run"
        ]
        reason = "; ".join(["a comparison needs two finished runs", *others])
        return {"verdict": ONE_RUN if compared else NO_RUN, "reason": reason, "answers": []}
    answers = say_scaling(scaling)
    for group, winners in group_winners.items():
        best = list_best(winners) or "nobody is named"
        members = ", ".join(dict.fromkeys(names[run] for run in group))
        answers.append(f"comparable with each other: {members}; best: {best}")
    verdict, reason = fairness.verdict, fairness.reason
    if verdict == NOT_COMPARABLE and not any(run.is_foreign for run in compared):
        apart = {entry.field for entry in fairness.differences if entry.keeps_apart}
        answered = {name for group in group_winners for name in group}
        if scaling and apart <= FREE:
            if disagreement := _find_disagreement(compared, fairness, scaling):
                return {"verdict": NOT_COMPARABLE, "reason": disagreement, "answers": answers}
            verdict = f"{' and '.join(sorted({series['kind'] for series in scaling}))} scaling"
            reason = _say_efficiency(scaling)
            answered |= {name for series in scaling for name in _list_members(series)}
        elif group_winners and FIELD not in apart:
            verdict = PER_GROUP
        alone = [*dict.fromkeys(names[run.name] for run in compared if run.name not in answered)]
        if verdict != NOT_COMPARABLE and alone:
            answers.append(f"comparable with no other: {', '.join(alone)}")
    return {"verdict": verdict, "reason": reason, "answers": answers}


def _say_efficiency(scaling: Series) -> str:
    """Return `efficiency from 2 to 4 processes: ddp 75 %, fsdp 90 %`: of the largest number of processes of each
    series.
    """
    kinds = {series["kind"] for series in scaling}
    spans: dict[str, list[str]] = {}
    for series in scaling:
        last, begin = series["points"][-1], series["baseline"]
        pct = last["scaling_efficiency_pct"]
        if pct is None:
            begin, pct = "single", last["efficiency_vs_single_pct"]
        span = f"from {begin} to {last['world_size']} processes"
        label = f"{series['kind']}, {span}" if len(kinds) > 1 else span
        spans.setdefault(label, []).append(f"{name_series(series)} {pct:.0f} %")
    told = "; ".join(f"{span}: {', '.join(each)}" for span, each in spans.items())
    notes = dict.fromkeys(series["note"] for series in scaling if series["note"])
    return "; ".join([f"efficiency {told}", *notes])


def _list_members(series: Mapping[str, Any]) -> Iterator[str]:
    for part in (*series["points"], series["single"] or {"runs": []}):
        yield from part["runs"]


def _find_disagreement(runs: Sequence[ComparedRun], fairness: Fairness, scaling: Series) -> str:
    """Return why a series is not a single training; "" if each is. A larger global batch is another training by
    design.
    """
    for series in scaling:
        if series["kind"] != "strong":
            continue
        members = [*_list_members(series)]
        _, reference, judged = split_groups([members], runs, fairness.pairs)
        if difference := build_difference([members], reference, judged):
            return f"the runs differ in {FIELD}: {difference.why}"
    return ""


def _describe_origin(runs: Sequence[ComparedRun], rows: Rows) -> dict[str, Any]:
    """Return the origin of the numbers. A fact on which the runs differ is the list of its values."""
    compared = [row for row in rows if row.is_compared]
    machines = [len(run.place.nodes) for run in runs if run.is_compared and run.place.nodes]
    versions: dict[str, list[Any]] = {}
    for run in runs:
        for name, version in run.versions.items():
            versions.setdefault(name, []).append(version)
    return {
        **{name: _one_or_all([getattr(row, field) for row in compared]) for name, field in ORIGIN.items()},
        "machines": _one_or_all(machines),
        "repeats": _count_repeats(compared),
        "versions": {name: _one_or_all(every) for name, every in sorted(versions.items())},
    }


def _count_repeats(rows: Rows) -> int:
    """Return the smallest number of repeats of a configuration."""
    return min(Counter(row.configuration for row in rows).values(), default=0)


def _name_comparison(runs: Sequence[ComparedRun]) -> str:
    names = [run.config.get("comparison") or run.summary.get("comparison") for run in runs]
    return ", ".join(dict.fromkeys(filter(None, names))) or "unnamed"


def _one_or_all(values: Sequence[Any]) -> Any:
    """Return the value on which all agree, or the list of the distinct ones in order; None without values."""
    distinct = [value for i, value in enumerate(values) if value not in values[:i]]
    return distinct[0] if len(distinct) == 1 else distinct or None


def _list_remarks(rows: Rows, is_search: bool) -> list[str]:
    finished = [row for row in rows if row.is_compared and not row.is_foreign]
    traced = [row for row in rows if row.is_foreign]
    remarks = [f"{', '.join(row.run for row in traced)}: {ONLY_TRACES}"] if traced else []
    remarks += [ON_CPU] if any(row.device_type == "cpu" for row in finished) else []
    for row in rows:
        if row.is_foreign:
            remarks += [f"{row.run}: {problem}" for problem in row.problems]
            continue
        if row.status != "finished":
            remarks.append(f"{row.run} is {row.status} and not ranked: {row.ending}")
            continue
        if row.degenerate:
            why = say_degenerate(row.missing_dimensions)
            remarks.append(f"{row.run} is not compared: {why} ({row.layout or 'unknown layout'})")
        if not row.complete:
            lacks = [*(f"{name} is missing" for name in row.missing), *row.problems]
            remarks.append(f"{row.run} is not complete: {', '.join(lacks)}")
    if untimed := [f"{row.run} ({row.steps} steps)" for row in finished if row.step_time_ms_p50 is None]:
        remarks.append(
            f"no step of {', '.join(untimed)} was timed: the first {WARM_UP_STEPS} never are, nor on a GPU those "
            "from the profile on; train longer to know the speed"
        )
    by_layout: dict[str, dict[Any, str]] = {}  # runs with other requested numbers of dimensions
    for row in finished:
        if row.layout:
            by_layout.setdefault(row.layout, {}).setdefault(row.dimensions, row.run)
    for layout, runs in by_layout.items():
        if len(runs) > 1:
            same = f"{' and '.join(runs.values())} have the same layout, {layout}"
            remarks.append(f"{same}: they are repeats of one thing")
    is_single = not is_search and _count_repeats(finished) == 1  # the repeats of a search are seeds
    return [*remarks, ONE_REPEAT] if is_single else remarks


def _list_other_ways(fairness: Fairness, varied: Sequence[str]) -> list[str]:
    ways = list_ways(fairness.differences)
    return [
        f"the runs differ in how one training is carried out: with --vary {','.join([*varied, *ways])} stratlab "
        "compare holds them against each other, if their losses agree"
    ] * bool(ways)


def _list_places(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the nodes, if the runs were not all on the same."""
    found = {run.name: ", ".join(run.place.nodes) for run in runs if run.is_compared and run.place.nodes}
    if len(set(found.values())) < 2:
        return []
    return [f"on different nodes: {'; '.join(f'{name} on {nodes}' for name, nodes in found.items())}"]


def _list_unknown_tuning(runs: Sequence[ComparedRun]) -> list[str]:
    asked = any(run.tuning == NOT_IN_MLFLOW for run in runs)
    remark = f"whether a sweep has tuned the strategies is {NOT_IN_MLFLOW}; stratlab compare DIR knows"
    return [remark] * asked


def say_tuning(tuning: Mapping[str, Any] | None) -> list[str]:
    """Return one sentence for the tuned strategies, one per untuned combination, and one if CPU times have chosen."""
    if not tuning:
        return []
    searches = tuning["searches"]
    tuned = [f"{name_search(each)} {say_choice(each)}" for each in searches if not each["why_not"]]
    remarks = [f"tuned by {tuning['metric']['name']} first: {'; '.join(tuned)}"] if tuned else []
    remarks += [f"not tuned: {name_search(each)}, {each['why_not']}" for each in searches if each["why_not"]]
    if (tuning.get("origin") or {}).get("device") == "cpu":
        remarks.append(TUNED_ON_CPU)
    return remarks


def name_search(search: Mapping[str, Any]) -> str:
    """Return `fsdp`, and the other places in the matrix: `fsdp (micro_batch_size=16)`."""
    point = {path.rpartition(".")[2]: value for path, value in search["point"].items() if path != "strategy"}
    others = [f"{name}={value}" for name, value in point.items()]
    return f"{search['strategy']} ({', '.join(others)})" if others else str(search["strategy"])


def name_knobs(knobs: Mapping[str, Any]) -> str:
    """Return `reduce_bucket_mib=50`, or `as it comes`."""
    return ", ".join(f"{name}={format_fact(value)}" for name, value in knobs.items()) or "as it comes"


def say_choice(search: Mapping[str, Any]) -> str:
    """Return the chosen setting and its gain over the strategy's defaults, against the noise."""
    if not search["tried"]:
        return "has no knob"
    tried = search["tried"]
    chosen = next(each for each in tried if each["knobs"] == search["chosen"])
    if not search["chosen"]:
        why = f", for none is better by more than {_noise(tried)}"
    elif chosen["lead_pct"] is None:
        why = f"; as it comes it gave no number: {tried[0]['why']}"
    else:
        why = f", {chosen['lead_pct']:+.1f} %; {_noise([chosen])}"
    left_out = ", ".join(name_knobs(each) for each in search.get("not_tried", []))
    rest = f"; not tried, for want of candidates: {left_out}" if left_out else ""
    return f"{name_knobs(search['chosen'])} of {len(tried)} candidates{why}{rest}"


def _noise(tried: list[Mapping[str, Any]]) -> str:
    noisy = [each for each in tried if each["measured_noise"]]
    if not noisy:
        return f"{LEAST_LEAD_PCT:g} %, which counts as none without repeats"
    return f"the noise of repeats, {format_number(max(each['noise_pct'] for each in noisy))} %"
