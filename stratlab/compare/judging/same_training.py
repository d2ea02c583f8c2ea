"""Only runs that compute the same training may be compared: their first losses must agree.

They agree within a stated gate, or within what repeats of one run differ by. Two runs that are equal in every fact and
still learn differently do different work, and then their speeds answer different questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from stratlab.compare.judging.variants import build_variants
from stratlab.run_directory.record import RunRecord

FIELD = "losses of the first steps"
GATES_PCT = {"fp32": 0.01, "bf16": 1.0, "fp16": 1.0, "bf16_native": 2.0}
"""Of the mean loss. Half precision: those of the parity tests. fp32: ten times theirs, because rounding grows over the
steps; strategies differed by 0.00007 % at most over 16 steps of small models on CPUs."""
NOT_JUDGED = ("allowed_pct", "allowed_by", "agrees")
NOISE_FACTOR = 2.0
"""How much further apart than the largest distance of repeats two runs may lie: a few repeats do not show the most."""
MOST_NOISE = 10.0
"""Gates. Repeats further apart than this show no noise, but that something is wrong with one of them."""

Pair = dict[str, Any]


def split_groups(
    groups: Sequence[Sequence[str]], runs: Sequence[RunRecord], pairs: Sequence[Pair]
) -> tuple[list[list[str]], dict[str, str], list[Pair]]:
    """Divides groups of runs with equal facts into those whose losses agree.

    Args:
        groups: names of runs; repeats of one run with another seed are in other groups.
        pairs: of `agreement.loss_agreement`.

    Returns:
        the groups, the largest first; run -> the run of its group that the others were held against; and the pairs with
        allowed_pct, allowed_by (a sentence) and agrees (None where a loss is not recorded), all None for runs that
        other facts keep apart.
    """
    by_name = {run.name: run for run in runs}
    judged = {_key(*pair["runs"]): {**pair, **dict.fromkeys(NOT_JUDGED)} for pair in pairs}
    found: list[list[str]] = []
    reference: dict[str, str] = {}
    for group in groups:
        inside = [judged[_key(a, b)] for a, b in combinations(group, 2)]
        allowed, by = _find_allowed([by_name[name] for name in group], inside)
        for pair in inside:
            distance = pair["loss_difference_pct"]
            agrees = None if distance is None else distance <= allowed
            pair |= {"allowed_pct": allowed, "allowed_by": by, "agrees": agrees}
        for first, part in _divide(group, {_key(*p["runs"]) for p in inside if p["agrees"]}):
            found.append(part)
            reference |= dict.fromkeys(part, first)
    return sorted(found, key=len, reverse=True), reference, list(judged.values())


def build_difference(
    groups: Sequence[Sequence[str]], reference: Mapping[str, str], pairs: Sequence[Pair]
) -> dict[str, Any] | None:
    """The entry of the audit if the losses divide a group, else None.

    Args:
        groups: as they were before; the others as `split_groups` gives them.
    """
    if all(len({reference[name] for name in group}) == 1 for group in groups):
        return None
    known = [pair for pair in pairs if pair["agrees"] is False]
    silent = [pair for pair in pairs if pair["agrees"] is None and pair["allowed_pct"] is not None]
    said = []
    if known:
        worst = max(known, key=lambda pair: pair["loss_difference_pct"] / pair["allowed_pct"])
        said.append(
            f"{' and '.join(worst['runs'])} are up to {worst['loss_difference_pct']:.2g} % apart and may be "
            f"{worst['allowed_pct']:.2g} % ({worst['allowed_by']}): they do not compute the same training"
        )
    if silent:
        said.append(f"not known of {' and '.join(silent[0]['runs'])}")
    values = {name: f"as {other}" for name, other in reference.items()}
    return {"field": FIELD, "values": values, "matters": True, "why": "; ".join(said)}


def _find_allowed(runs: Sequence[RunRecord], pairs: Sequence[Pair]) -> tuple[float, str]:
    precision = str(runs[0].config.get("resolved", {}).get("precision"))
    gate = GATES_PCT.get(precision, GATES_PCT["fp32"])
    repeats = [{run.name for run in variant} for variant in build_variants(runs)]
    distances = [
        pair["loss_difference_pct"]
        for pair in pairs
        if pair["loss_difference_pct"] is not None and any(set(pair["runs"]) <= names for names in repeats)
    ]
    noise = NOISE_FACTOR * max(distances, default=0.0)
    if gate < noise <= MOST_NOISE * gate:
        return noise, f"{NOISE_FACTOR:g} times the distance of repeats"
    return gate, f"the gate of {precision}"


def _divide(group: Sequence[str], agree: set[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Parts in which everybody agrees with one run, named first: the one with whom most agree. Agreeing does not carry
    over from one pair to the next, so nobody is let in by a chain of neighbours."""
    left, parts = list(group), []
    while left:
        friends = {name: [other for other in left if _key(name, other) in agree] for name in left}
        first = max(left, key=lambda name: len(friends[name]))
        parts.append((first, [name for name in left if name == first or name in friends[first]]))
        left = [name for name in left if name not in parts[-1][1]]
    return parts


def _key(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a <= b else (b, a)
