"""What each fault of a long run has cost, read from what the run left: metrics.jsonl, attempts.jsonl, MLflow's points.

Times of faults are those of the machine that injects them, times of steps those of the node: where the two clocks
differ, seconds to recover are wrong by as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.faults.matrix import Fault

LONGEST_S = 120.0
"""From a fault to the next step: facts F4 and F5, on two cores."""
Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Blow:
    """One fault that a run has suffered.

    Attributes:
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

    def demand(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)

    def count_points(self, found: Mapping[str, int]) -> None:
        """Of the whole run: none may be lost or doubled."""
        for name in ("points_lost", "points_doubled"):
            self.figures[name] = found[name]
            self.demand(not found[name], f"{name}: {found[name]}")


def measure_blows(blows: Sequence[Blow], lines: Lines, starts: Lines) -> list[Cost]:
    """Seconds to recover and steps lost of each.

    Args:
        blows: in the order of time.
        lines: of metrics.jsonl.
        starts: the lines `started` of attempts.jsonl.
    """
    ends = [*(blow.began for blow in blows[1:]), float("inf")]
    trained = [line for line in lines if line["kind"] == "train"]
    return [_measure(blow, end, trained, starts) for blow, end in zip(blows, ends, strict=True)]


def _measure(blow: Blow, end: float, trained: Lines, starts: Lines) -> Cost:
    cost = Cost()
    before = [start for start in starts if start["t"] <= blow.began]
    later = [start for start in starts if blow.began < start["t"] < end]
    if not before:
        cost.problems.append("early: it came before the first attempt")
        return cost
    cost.demand(bool(later) or not blow.restarts, "attempts: none came after it")
    cost.demand(not later or blow.restarts, f"attempts: {len(later)} after it, and the pods had not to end")
    attempt = before[-1]["attempt"]
    steps = [line for line in trained if blow.ready < line["t"] < end]
    if blow.restarts:
        steps = [line for line in steps if line["attempt"] > attempt]
    cost.demand(bool(steps), "steps: none came after it")
    if steps:
        cost.figures["seconds_to_recover"] = round(min(line["t"] for line in steps) - blow.ready, 1)
        cost.demand(cost.figures["seconds_to_recover"] <= LONGEST_S, f"late: more than {LONGEST_S:.0f} s")
    lost = cost.figures["steps_lost"] = _count_lost([before[-1], *later], trained)
    cost.demand(lost <= blow.most_lost, f"lost: {lost} steps, at most {blow.most_lost} are allowed")
    return cost


def _count_lost(starts: Lines, trained: Lines) -> int:
    """Steps that an attempt had made and the next one made again."""
    lost = 0
    for start, following in pairwise(starts):
        steps = [line["step"] for line in trained if line["attempt"] == start["attempt"]]
        lost += max(0, max(steps, default=start["from_step"]) - following["from_step"])
    return lost


def write_row(strategy: str, fault: Fault, cost: Cost) -> dict[str, Any]:
    """As `tests.faults.outcome.judge_fault` writes one: tests.faults.outcome.write_table takes both."""
    return {
        "fault": f"{fault.number} {strategy}", "what": fault.what, "injected": fault.injected, "must": fault.must,
        "stand_in": fault.stand_in, "passed": not cost.problems, "tests": 1,
        "seconds": cost.figures.get("seconds_to_recover", 0.0),
        "figures": cost.figures, "problems": cost.problems,
    }  # fmt: skip
