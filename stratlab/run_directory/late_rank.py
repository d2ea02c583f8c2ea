"""Find a rank that is late by more than chance explains: the one rule of `stratlab analyze` and `stratlab compare`.

Ranks that communicate in every step have equal step times, so the rule uses a rank's own time: its step without
exposed communication, in which it waits for the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from stratlab.run_directory.files import is_number

CHANCE = 0.008  # the share of runs with equal ranks in which one may be named
LEAST_SHARE = 0.02  # of the step: smaller differences do not matter
FEWEST_STEPS = 3
CALLS_CHANCE = 0.01
ENOUGH_FOR_NEIGHBOURS = 8  # steps
MOST_ALIKE = 0.9
LEAST_FREEDOM = 3

Row = Mapping[str, Any]


def find_late_rank(steps: Iterable[Row], collectives: Iterable[Row]) -> int | None:
    """Return the late rank, None if chance may explain the times. In pipelines stages differ by design: None.

    Args:
        steps, collectives: of analysis/report.json.
    """
    own: dict[int, dict[int, float]] = {}
    whole_ms: list[float] = []
    for row in steps:
        if row.get("bubble_ms"):
            return None
        if is_number(row.get("step_ms")) and is_number(row.get("comm_exposed_ms")):
            whole_ms.append(row["step_ms"])
            own.setdefault(row["rank"], {})[row["step"]] = row["step_ms"] - row["comm_exposed_ms"]
    common = sorted(set.intersection(*(set(times) for times in own.values()))) if own else []
    if len(common) < FEWEST_STEPS:
        return _find_by_calls(collectives) if len(own) > 1 else None
    table = {rank: [times[step] for step in common] for rank, times in own.items()}
    return _find_by_times(table, LEAST_SHARE * sum(whole_ms) / len(whole_ms))


def _find_by_times(own: Mapping[int, Sequence[float]], least: float) -> int | None:
    """Return the rank with the longest own time, if it is longer than the others' in nearly every step.

    Its lead is tested against two variations: how the lead changes from step to step, because one rank may be noisier
    than the others, and how all ranks change.
    """
    if len(own) < 2:
        return None
    late = max(own, key=lambda rank: sum(own[rank]))
    others = [times for rank, times in own.items() if rank != late]
    steps, ranks = len(own[late]), len(own)
    leads = [mine - sum(rest) / len(rest) for mine, *rest in zip(own[late], *others, strict=True)]
    lead = sum(leads) / steps
    if lead < least:
        return None
    spread = math.sqrt(sum((each - lead) ** 2 for each in leads) / (steps - 1))
    worth = _count_independent(leads)
    alone = _exceed(lead, spread / math.sqrt(worth), min(steps - 1, max(LEAST_FREEDOM, int(worth) - 1)))
    means = {rank: sum(times) / steps for rank, times in own.items()}
    of_step = [sum(column) / ranks for column in zip(*own.values(), strict=True)]
    centre = sum(of_step) / steps
    rest = sum(
        (times[i] - means[rank] - of_step[i] + centre) ** 2
        for rank, times in own.items()
        for i in range(steps)
    )
    freedom = (ranks - 1) * (steps - 1)
    error = math.sqrt(rest / freedom * ranks / (ranks - 1) / steps)
    together = _exceed(lead, error, freedom)
    return late if alone < CHANCE / 2 and together * ranks < CHANCE else None


def _count_independent(values: Sequence[float]) -> float:
    """Return the number of independent values with the same information about the mean.

    Other work on a machine lasts for some steps, and makes them alike. The correlation of neighbours measures that;
    its estimate is too low by the amount added here. Few values do not allow an estimate, and all count.
    """
    count, mean = len(values), sum(values) / len(values)
    away = [value - mean for value in values]
    whole = sum(each * each for each in away)
    if count < ENOUGH_FOR_NEIGHBOURS or not whole:
        return count
    seen = sum(one * other for one, other in pairwise(away)) / whole
    alike = min(max(seen + (1 + 4 * seen) / count, 0.0), MOST_ALIKE)
    return max(count * (1 - alike) / (1 + alike), 2.0)


def _find_by_calls(collectives: Iterable[Row]) -> int | None:
    """With too few steps, use the calls: return the rank that came last in more of them than among equals."""
    last: Counter[int | None] = Counter()
    for row in collectives:
        last[row.get("rank")] += row.get("arrived_last") or 0
    if len(last) < 2 or not last.total():
        return None
    (late, count), share = last.most_common(1)[0], 1 / len(last)
    calls = last.total()
    chance = sum(math.comb(calls, n) * share**n * (1 - share) ** (calls - n) for n in range(count, calls + 1))
    return late if chance * len(last) < CALLS_CHANCE else None


def _exceed(value: float, error: float, freedom: int) -> float:
    """Return how often chance exceeds `value`, with a standard error of `freedom` degrees of freedom: Student's t.

    Source: Abramowitz and Stegun 1964, 26.7.3 and 26.7.4.
    """
    if not error:
        return 0.0
    angle = math.atan(value / error / math.sqrt(freedom))
    cosine, term, total = math.cos(angle), 1.0, 0.0
    for n in range(2 + freedom % 2, freedom + 1, 2):
        total += term * cosine ** (n - 2)
        term *= (n - 1) / n
    if freedom % 2 == 0:
        return (1 - math.sin(angle) * total) / 2
    return (1 - 2 / math.pi * (angle + math.sin(angle) * total)) / 2
