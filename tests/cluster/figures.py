"""What each fault of a long run has cost, read from what the run left: metrics.jsonl, attempts.jsonl, MLflow's points.

Times of faults are those of the machine that injects them, times of steps those of the node: where the two clocks
differ, seconds to recover are wrong by as much.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.faults.matrix import Fault

LONGEST_S = 120.0
"""From a fault to the next step: facts F4 and F5, on two cores."""


@dataclass(frozen=True)
class Blow:
    """One fault that a run has suffered.

    Attributes:
        fault: its row.
        began: when it was injected, in seconds since 1970.
        ready: from when on the run could go on: behind a suspension later than `began`.
        restarts: whether the pods end by it and others take over.
        most_lost: steps that may have to be done again.
    """

    fault: Fault
    began: float
    ready: float
    restarts: bool
    most_lost: int = 0


@dataclass
class Cost:
    """Figures by the names of tests.faults.matrix.FIGURES, and what is wrong with them."""

    figures: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def measure_blows(
    blows: Sequence[Blow], lines: Sequence[Mapping[str, Any]], starts: Sequence[Mapping[str, Any]]
) -> list[Cost]:
    """Seconds to recover and steps lost of each.

    Args:
        blows: in the order of time.
        lines: of metrics.jsonl.
        starts: the lines `started` of attempts.jsonl.
    """
    ends = [*(blow.began for blow in blows[1:]), float("inf")]
    trained = [line for line in lines if line["kind"] == "train"]
    return [_measure(blow, end, trained, starts) for blow, end in zip(blows, ends, strict=True)]


def _measure(
    blow: Blow, end: float, trained: Sequence[Mapping[str, Any]], starts: Sequence[Mapping[str, Any]]
) -> Cost:
    cost = Cost()
    before = [start for start in starts if start["t"] <= blow.began]
    later = [start for start in starts if blow.began < start["t"] < end]
    if not before:
        cost.problems.append("it came before the first attempt")
        return cost
    if blow.restarts and not later:
        cost.problems.append("no attempt came after it")
    if later and not blow.restarts:
        cost.problems.append(f"{len(later)} attempts came after it, and the pods had not to end")
    attempt = before[-1]["attempt"]
    steps = [line for line in trained if blow.ready < line["t"] < end]
    if blow.restarts:
        steps = [line for line in steps if line["attempt"] > attempt]
    if steps:
        cost.figures["seconds_to_recover"] = round(min(line["t"] for line in steps) - blow.ready, 1)
        if cost.figures["seconds_to_recover"] > LONGEST_S:
            cost.problems.append(f"the next step came more than {LONGEST_S:.0f} s after it")
    else:
        cost.problems.append("no step came after it")
    lost = cost.figures["steps_lost"] = _count_lost([before[-1], *later], trained)
    if lost > blow.most_lost:
        cost.problems.append(f"{lost} steps lost, at most {blow.most_lost} are allowed")
    return cost


def _count_lost(starts: Sequence[Mapping[str, Any]], trained: Sequence[Mapping[str, Any]]) -> int:
    """Steps that an attempt had made and the next one made again."""
    lost = 0
    for start, following in pairwise(starts):
        steps = [line["step"] for line in trained if line["attempt"] == start["attempt"]]
        lost += max(0, max(steps, default=start["from_step"]) - following["from_step"])
    return lost


def share_points(
    costs: Sequence[Cost], blows: Sequence[Blow], lost: Iterable[float], doubled: Iterable[float]
) -> None:
    """Adds to each cost the points between its fault and the next one; what came before all of them is the first's.

    Args:
        lost, doubled: the times of such points, in seconds since 1970.
    """
    began = [blow.began for blow in blows]
    for name, times in (("points_lost", lost), ("points_doubled", doubled)):
        counts = [0] * len(blows)
        for t in times:
            counts[max(0, bisect_right(began, t) - 1)] += 1
        for cost, count in zip(costs, counts, strict=True):
            cost.figures[name] = count
            if count:
                cost.problems.append(f"{count} {name.replace('_', ' ')}")


def write_row(strategy: str, fault: Fault, cost: Cost) -> dict[str, Any]:
    """As `tests.faults.outcome.judge_fault` writes one: tests.faults.outcome.write_table takes both."""
    return {
        "fault": f"{fault.number} {strategy}", "what": fault.what, "injected": fault.injected, "must": fault.must,
        "stand_in": fault.stand_in, "passed": not cost.problems, "tests": 1,
        "seconds": cost.figures.get("seconds_to_recover", 0.0),
        "figures": cost.figures, "problems": cost.problems,
    }  # fmt: skip
