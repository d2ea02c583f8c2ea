"""The content of report.json: what every run measured, whether the runs are comparable, and what follows.

The headline of a comparison: what its runs answer. Every place that shows a comparison begins with it.

What a tuning came to, in sentences.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stratlab.compare.attribution import build_attribution
from stratlab.compare.efficiency import FREE, build_scaling, build_sharding, name_series, say_scaling
from stratlab.compare.fairness import (
    FIELD,
    audit,
    build_difference,
    loss_agreement,
    say_degenerate,
    split_groups,
)
from stratlab.compare.placement import apply_place, find_repeated_layouts
from stratlab.compare.run_rows import TRAINERS_OWN, apply_others, build_row, is_compared, name_variant
from stratlab.compare.run_sources import NOT_IN_MLFLOW, apply_tuning
from stratlab.compare.search_ranking import build_search
from stratlab.compare.variants import build_variants, check_varied, list_ways, name_way
from stratlab.compare.winners import (
    LEAST_LEAD_PCT,
    NAMES,
    ON_CPU,
    ONE_REPEAT,
    build_goals,
    build_noise,
    build_pareto,
    get_band,
    name_group_winners,
    name_winners,
)
from stratlab.run_directory.record import TRACED, RunRecord
from stratlab.user_error import UserError
from stratlab.wording import format_fact, format_number

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


TUNED_ON_CPU = "tuned on CPU: these are CPU times, and choose nothing for GPUs"


def say_tuning(tuning: Mapping[str, Any] | None) -> list[str]:
    """One sentence for what was tuned, one for each combination that was not, and where CPU times have chosen."""
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
    """`fsdp`, and the other places in the matrix: `fsdp (micro_batch_size=16)`."""
    others = [
        f"{path.rpartition('.')[2]}={value}" for path, value in search["point"].items() if path != "strategy"
    ]
    return f"{search['strategy']} ({', '.join(others)})" if others else str(search["strategy"])


def name_knobs(knobs: Mapping[str, Any]) -> str:
    """`reduce_bucket_mib=50`, or `as it comes`."""
    return ", ".join(f"{name}={format_fact(value)}" for name, value in knobs.items()) or "as it comes"


def say_choice(search: Mapping[str, Any]) -> str:
    """What was taken, and by how much it is better than the strategy as it comes, against the noise."""
    if not search["tried"]:
        return "has no knob"
    left_out = ", ".join(name_knobs(each) for each in search.get("not_tried", []))
    return _say_chosen(search) + (f"; not tried, for want of candidates: {left_out}" if left_out else "")


def _say_chosen(search: Mapping[str, Any]) -> str:
    chosen = next(each for each in search["tried"] if each["knobs"] == search["chosen"])
    text = f"{name_knobs(search['chosen'])} of {len(search['tried'])} candidates"
    if not search["chosen"]:
        return f"{text}, for none is better by more than {_noise(search['tried'])}"
    if chosen["lead_pct"] is None:
        return f"{text}; as it comes it gave no number: {search['tried'][0]['why']}"
    return f"{text}, {chosen['lead_pct']:+.1f} %; {_noise([chosen])}"


def _noise(tried: list[Mapping[str, Any]]) -> str:
    noisy = [each for each in tried if each["measured_noise"]]
    if not noisy:
        return f"{LEAST_LEAD_PCT:g} %, which counts as none without repeats"
    return f"the noise of repeats, {format_number(max(each['noise_pct'] for each in noisy))} %"


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
