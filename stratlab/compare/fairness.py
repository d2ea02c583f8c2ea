"""May the runs be compared? The audit: differences, their importance, and groups of comparable runs.

Only runs that compute the same training may be compared: their first losses must agree, within a stated gate or
within the differences of repeats. Two runs that are equal in every fact and still learn differently do different
work, and then their speeds answer different questions.

loss_agreement   losses and gradient norms of the first steps, pair by pair.
audit            fact by fact over the table of `rules`, then `split_groups` by the losses.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from stratlab.compare.placement import ComparedRun
from stratlab.compare.rules import IMPLIED, RULES, Difference, Rule
from stratlab.compare.variants import (
    SEED_FACTS,
    SEED_SETTING,
    UNKNOWN,
    build_variants,
    excuse,
    find_ways,
    is_way,
    join_seeds,
    read_fact,
    read_path,
    read_task,
)
from stratlab.run_directory.record import RunRecord

FIRST_STEPS = 20  # later, rounding that differs by the order of a sum has grown into another path
FIELD = "losses of the first steps"
GATES_PCT = {"fp32": 0.01, "bf16": 1.0, "fp16": 1.0, "bf16_native": 2.0}
"""Percent of the mean loss. Half precision: as in the parity tests. fp32: ten times theirs, because rounding grows
over the steps; strategies differed by 0.00007 % at most over 16 steps of small models on CPUs."""
NOT_JUDGED = ("allowed_pct", "allowed_by", "agrees")
NOISE_FACTOR = 2.0
"""Allowed distance of two runs over the largest distance of repeats: a few repeats do not show the largest."""
MOST_NOISE = 10.0
"""Gates. Repeats further apart than this show no noise, but that something is wrong with one of them."""
ONLY_TALK = "NCCL_DEBUG"
"""Variables of this kind make a library print more."""
COMPARABLE, NOT_COMPARABLE = "comparable", "not comparable"
AS_SEARCH = "comparable as a search"
"""The verdict over runs that differ only in settings varied on purpose."""
UNSHOWN = "comparability not known"
"""The verdict without visible differences if some runs have only traces."""
SEEDS = "runs of several seeds are repeats, and their losses are held against each other under each seed"
"""Why another seed does not matter."""
HOW = "meant to leave the training as it is: the losses are held against each other"
"""Why a varied difference does not matter."""
ONLY_TRACES = (
    "of {} there are only traces, which tell neither model nor data, batch sizes, precision or losses: that the "
    "settings are equal cannot be shown"
)
TOLD_BY_TRACES = ("world_size", "device_name", "backend")
SETTINGS = "settings"
Pair = dict[str, Any]
"""Of `loss_agreement`."""
LeftOut = list[dict[str, str]]
"""[{run, why}]."""


@dataclass
class Fairness:
    """The result of the audit, as in report.json (there `pairs` are in `loss_agreement`)."""

    differences: list[Difference]
    """The important ones first. Varied settings that do not change the training do not matter."""
    same: dict[str, Any]
    """Field -> value of the facts on which all agree."""
    groups: list[list[str]]
    """Runs without a difference that matters among them, the largest group first."""
    search_groups: list[list[str]]
    """The groups without varied settings: results may be ranked over their runs. Of runs with equal settings whose
    losses disagree only the larger part is included. Empty if no setting is varied."""
    verdict: str
    """COMPARABLE, AS_SEARCH, UNSHOWN or NOT_COMPARABLE."""
    reason: str
    ways: list[str]
    """The varied settings in which runs differ and that do not change the training (`variants.find_ways`)."""
    not_compared: LeftOut
    """The finished runs that were left out."""
    pairs: list[Pair]
    """The pairs of `loss_agreement`, with the allowed difference and whether they agree."""

    @property
    def is_comparable(self) -> bool:
        return self.verdict == COMPARABLE


def audit(runs: Sequence[ComparedRun], pairs: Sequence[Pair], varied: Sequence[str] = ()) -> Fairness:
    """Compare the finished runs fact by fact, and their losses, without runs that differ from their name's promise.

    Args:
        pairs: of `loss_agreement`.
        varied: settings in which the runs differ on purpose (`variants.excuse`).
    """
    finished = [run for run in runs if run.is_compared and not run.is_foreign]
    foreign = [run for run in runs if run.is_compared and run.is_foreign]
    differences, same = _compare_facts(finished, foreign, varied)
    ways = find_ways(differences)
    for entry in differences:
        if is_way(entry, ways):
            entry.matters, entry.why = False, f"{entry.why}; {HOW}"
    alike = _groups(finished, differences)
    parts, reference, pairs = split_groups(alike, finished, pairs)
    if finding := build_difference(alike, reference, pairs):
        differences.append(finding)
    of_seeds = [entry for entry in differences if entry.field in SEED_FACTS and not entry.varied]
    doubtful = {name for entry in of_seeds for name, value in entry.values.items() if value == UNKNOWN}
    groups, is_joined = join_seeds(alike, parts, finished, doubtful)
    for entry in of_seeds:
        if is_joined and not doubtful and _follows_seed(entry, finished):
            entry.matters, entry.why = False, f"{entry.why}; {SEEDS}"
    differences.sort(key=lambda entry: not entry.matters)
    others = [entry for entry in differences if entry.field != FIELD and not entry.varied]
    searched = _groups(finished, others) if varied else []
    left_out = [
        {"run": run.name, "why": say_degenerate(run.missing_dimensions)}
        for run in runs
        if run.status == "finished" and not run.is_compared
    ]
    seen = [entry for entry in differences if entry.matters and not _is_silent(entry, foreign)]
    reason = _reason([*finished, *foreign], seen, left_out)
    verdict = NOT_COMPARABLE if reason else COMPARABLE
    if varied and reason and len(finished) > 1:
        verdict, reason = _judge_varied(finished, differences, left_out, varied)
    if foreign and len(finished) + len(foreign) > 1:
        verdict = UNSHOWN if verdict == COMPARABLE else verdict
        reason = "; ".join(filter(None, [reason, ONLY_TRACES.format(", ".join(run.name for run in foreign))]))
        values = {run.name: UNKNOWN if run.is_foreign else "recorded" for run in (*finished, *foreign)}
        differences.insert(
            0, Difference(SETTINGS, values, True, "traces do not tell them: equality cannot be shown")
        )
        groups = [*groups, *([run.name] for run in foreign)]
    meant = f"{', '.join(ways)}, which they are meant to differ in, and " if ways else ""
    reason = reason or f"nothing that matters differs, other than {meant}the strategy and what it implies"
    search_groups = _leave_out_disagreeing(searched, alike, parts)
    return Fairness(differences, same, groups, search_groups, verdict, reason, ways, left_out, pairs)


def _follows_seed(entry: Difference, runs: Sequence[ComparedRun]) -> bool:
    """Return whether all runs of one seed have the same value."""
    values: dict[str, set[str]] = {}
    for run in runs:
        values.setdefault(str(run.settings.get(SEED_SETTING)), set()).add(str(entry.values.get(run.name)))
    return all(len(of_seed) == 1 for of_seed in values.values())


def _compare_facts(
    finished: Sequence[ComparedRun], foreign: Sequence[ComparedRun], varied: Sequence[str]
) -> tuple[list[Difference], dict[str, Any]]:
    tasks = {"", *map(read_task, finished)}
    differences: list[Difference] = []
    same: dict[str, Any] = {}
    for rule in (rule for rule in (*RULES, *_unlisted(finished)) if rule.task in tasks):
        known = [*finished, *foreign] if rule.field in TOLD_BY_TRACES else finished
        values = {run.name: read_fact(run, rule) for run in known}
        if rule.replaced_by and all(run.settings.get(rule.replaced_by) for run in finished):
            values = dict.fromkeys(values, f"that of {rule.replaced_by}")
        silent = [name for name, value in values.items() if value == UNKNOWN]
        wanted = next(iter(values.values()), None) if rule.expected is None else rule.expected
        if silent or any(value != wanted for value in values.values()):
            excused, but = excuse(rule, values, varied, finished) if rule.matters else ("", "")
            unknown = f"not recorded by {', '.join(silent)}" if silent else ""
            why = "; ".join(filter(None, (rule.why, unknown, but)))
            differences.append(Difference(rule.field, values, rule.matters, why, excused))
        elif values:
            same[rule.field] = next(iter(values.values()))
    return differences, same


def _unlisted(runs: Sequence[RunRecord]) -> Iterator[Rule]:
    """Yield a rule for each setting and resolved fact that the table does not name: better asked once too often."""
    listed = {rule.path[:depth] for rule in RULES if rule.source == "config" for depth in (2, 3)}

    def list_names(*path: str) -> list[str]:
        names = {name for run in runs for name in read_path(run.config, path) or {}}
        return sorted(name for name in names if (*path, name) not in listed)

    for group in ("config", "resolved"):
        for name in list_names(group):
            if name not in IMPLIED:
                yield Rule(f"{group}.{name}", "config", (group, name), True, "not known to this audit")
    for name in list_names("provenance", "versions"):
        path = ("provenance", "versions", name)
        yield Rule(name, "config", path, True, "another library", absent="not installed")
    for name in list_names("provenance", "environment"):
        why, matters = (
            "it changes how collectives travel or how a device works",
            not name.startswith(ONLY_TALK),
        )
        yield Rule(name, "config", ("provenance", "environment", name), matters, why, absent="not set")


def _groups(finished: Sequence[RunRecord], differences: Sequence[Difference]) -> list[list[str]]:
    """Group runs with equal values in everything that matters; a run with an unknown or wrong fact is a group of its
    own.
    """
    expected = {rule.field: rule.expected for rule in RULES if rule.expected is not None}
    groups: dict[str, list[str]] = {}
    for run in finished:
        facts = [(entry.field, entry.values[run.name]) for entry in differences if entry.matters]
        alone = any(value == UNKNOWN or expected.get(field, value) != value for field, value in facts)
        groups.setdefault(json.dumps([run.name if alone else "", facts], sort_keys=True), []).append(run.name)
    return sorted(groups.values(), key=len, reverse=True)


def _is_silent(entry: Difference, foreign: Sequence[RunRecord]) -> bool:
    """Return whether the only problem is an unknown value, because traces do not contain the fact."""
    unknown = {name for name, value in entry.values.items() if value == UNKNOWN}
    known = {str(value) for value in entry.values.values() if value != UNKNOWN}
    return bool(unknown) and unknown <= {run.name for run in foreign} and len(known) < 2


def _judge_varied(
    finished: Sequence[RunRecord], differences: Sequence[Difference], left_out: LeftOut, varied: Sequence[str]
) -> tuple[str, str]:
    """Return verdict and reason for runs that differ on purpose."""
    named = {name for entry in differences for name in entry.causes}
    asked = [name for name in (*varied, SEED_SETTING) if name in named]
    meant = f"the runs differ in {', '.join(asked)}, as they are meant to" if asked else ""
    other = _reason(finished, [entry for entry in differences if entry.keeps_apart], left_out)
    if not other:
        return AS_SEARCH, f"{meant}, and in nothing else that matters"
    return NOT_COMPARABLE, f"{other}; {meant}" if meant else other


def _reason(finished: Sequence[RunRecord], differences: Sequence[Difference], left_out: LeftOut) -> str:
    """Return why the runs are not comparable; "" if they are."""
    if len(finished) < 2:
        others = ", ".join(f"{entry['run']} ({entry['why']})" for entry in left_out)
        count = f"{len(finished)} finished run{' to compare' if others else ''}; a comparison needs two"
        return f"{count}; not compared: {others}" if others else count
    differing = [entry.field for entry in differences if len(set(map(str, entry.values.values()))) > 1]
    wrong_in_all = [
        f"{entry.field} is {next(iter(entry.values.values()))} ({entry.why})"
        for entry in differences
        if entry.field not in differing
    ]
    told = [f"the runs differ in {', '.join(differing)}"] if differing else []
    return "; ".join([*told, *(["in all runs " + ", ".join(wrong_in_all)] if wrong_in_all else [])])


def _leave_out_disagreeing(
    searched: Sequence[Sequence[str]], alike: Sequence[Sequence[str]], groups: Sequence[Sequence[str]]
) -> list[list[str]]:
    """Leave out runs whose losses disagree with the majority of the runs with the same settings.

    Without a majority all of them are left out, because the correct run is unknown.
    """
    kept = set()
    for same in alike:
        parts = sorted((part for part in groups if set(part) <= set(same)), key=len, reverse=True)
        if len(parts) == 1 or len(parts[0]) > len(parts[1]):
            kept |= set(parts[0])
    remaining = [[name for name in group if name in kept] for group in searched]
    return sorted(filter(None, remaining), key=len, reverse=True)


def say_degenerate(missing: Sequence[str]) -> str:
    """Return why a run is left out: `degenerate: lacks data, tensor parallelism`."""
    return f"degenerate: lacks {', '.join(missing) or 'a kind of'} parallelism"


def split_groups(
    groups: Sequence[Sequence[str]], runs: Sequence[ComparedRun], pairs: Sequence[Pair]
) -> tuple[list[list[str]], dict[str, str], list[Pair]]:
    """Divide groups of runs with equal facts into groups whose losses agree.

    Args:
        groups: names of runs; repeats of one run with another seed are in other groups.
        pairs: of `loss_agreement`.

    Returns:
        the groups, the largest first; run -> the reference run of its group; and the pairs. A pair has allowed_pct,
        allowed_by (a sentence) and agrees (None if a loss is not recorded), all None for runs that other facts keep
        apart.
    """
    by_name = {run.name: run for run in runs}
    judged = {frozenset(pair["runs"]): {**pair, **dict.fromkeys(NOT_JUDGED)} for pair in pairs}
    parts: list[list[str]] = []
    reference: dict[str, str] = {}
    for group in groups:
        inside = [judged[frozenset((a, b))] for a, b in combinations(group, 2)]
        allowed, by = _find_allowed([by_name[name] for name in group], inside)
        for pair in inside:
            distance = pair["loss_difference_pct"]
            agrees = None if distance is None else distance <= allowed
            pair |= {"allowed_pct": allowed, "allowed_by": by, "agrees": agrees}
        for first, part in _divide(group, {frozenset(p["runs"]) for p in inside if p["agrees"]}):
            parts.append(part)
            reference |= dict.fromkeys(part, first)
    return sorted(parts, key=len, reverse=True), reference, list(judged.values())


def build_difference(
    groups: Sequence[Sequence[str]], reference: Mapping[str, str], pairs: Sequence[Pair]
) -> Difference | None:
    """Return the finding of the audit if the losses divide a group, else None.

    Args:
        groups: before the division; the others are results of `split_groups`.
    """
    if all(len({reference[name] for name in group}) == 1 for group in groups):
        return None
    known = [pair for pair in pairs if pair["agrees"] is False]
    silent = [pair for pair in pairs if pair["agrees"] is None and pair["allowed_pct"] is not None]
    told = []
    if known:
        worst = max(known, key=lambda pair: pair["loss_difference_pct"] / pair["allowed_pct"])
        told.append(
            f"{' and '.join(worst['runs'])} are up to {worst['loss_difference_pct']:.2g} % apart and may be "
            f"{worst['allowed_pct']:.2g} % ({worst['allowed_by']}): they do not compute the same training"
        )
    if silent:
        told.append(f"not known of {' and '.join(silent[0]['runs'])}")
    values = {name: f"as {other}" for name, other in reference.items()}
    return Difference(FIELD, values, True, "; ".join(told))


def _find_allowed(runs: Sequence[ComparedRun], pairs: Sequence[Pair]) -> tuple[float, str]:
    precision = str(runs[0].resolved.get("precision"))
    gate = GATES_PCT.get(precision, GATES_PCT["fp32"])
    repeats = [{run.name for run in variant} for variant in build_variants(runs)]
    of_repeats = [pair for pair in pairs if any(set(pair["runs"]) <= names for names in repeats)]
    noise = NOISE_FACTOR * (_largest(pair["loss_difference_pct"] for pair in of_repeats) or 0.0)
    if gate < noise <= MOST_NOISE * gate:
        return noise, f"{NOISE_FACTOR:g} times the distance of repeats"
    return gate, f"the gate of {precision}"


def _divide(group: Sequence[str], agree: set[frozenset[str]]) -> list[tuple[str, list[str]]]:
    """Return parts whose runs all agree with the part's first run: the one with most agreeing runs.

    Agreement of two pairs does not imply the third, so a chain of neighbours does not join a part.
    """
    left, parts = list(group), []
    while left:
        friends = {name: [other for other in left if frozenset((name, other)) in agree] for name in left}
        first = max(left, key=lambda name: len(friends[name]))
        parts.append((first, [name for name in left if name == first or name in friends[first]]))
        left = [name for name in left if name not in parts[-1][1]]
    return parts


def loss_agreement(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the largest difference of the training losses over the first steps, and of the first gradient norm.

    Returns:
        first_steps: the number of compared steps.
        pairs: [{runs: [a, b], steps, max_abs_loss_difference, max_rel_loss_difference, loss_difference_pct,
            first_grad_norm_difference}]; None if a run lacks the numbers. Both runs have these steps. The relative
            difference is to the loss of the step, the percentage to the mean loss of these steps. `split_groups` adds
            the allowed difference, and whether they agree.
        max_abs_loss_difference, max_grad_norm_difference: over all pairs, or None.
    """
    pairs = [_pair(a, b) for a, b in combinations([run for run in runs if run.status == "finished"], 2)]
    return {
        "first_steps": FIRST_STEPS,
        "pairs": pairs,
        "max_abs_loss_difference": _largest(pair["max_abs_loss_difference"] for pair in pairs),
        "max_grad_norm_difference": _largest(pair["first_grad_norm_difference"] for pair in pairs),
    }


def _pair(a: RunRecord, b: RunRecord) -> Pair:
    first, second = a.series("train", "loss"), b.series("train", "loss")
    steps = [step for step in first if step in second and step <= FIRST_STEPS]
    largest = _largest(abs(first[s] - second[s]) for s in steps)
    relative = (abs(first[s] - second[s]) / max(abs(first[s]), abs(second[s]), 1e-30) for s in steps)
    mean = statistics.fmean([(abs(first[s]) + abs(second[s])) / 2 for s in steps]) if steps else 0.0
    one, other = (run.series("train", "grad_norm").get(1) for run in (a, b))
    return {
        "runs": [a.name, b.name],
        "steps": len(steps),
        "max_abs_loss_difference": largest,
        "max_rel_loss_difference": _largest(relative),
        "loss_difference_pct": None if largest is None else 100 * largest / max(mean, 1e-30),
        "first_grad_norm_difference": None if one is None or other is None else abs(one - other),
    }


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
