"""What a sweep would do, and what it has done, as objects for --json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stratlab.sweep.decision import Decision
from stratlab.sweep.planned_release import Planned
from stratlab.sweep.sweep import Result


def record_plan(plan: Sequence[Planned], todo: Sequence[tuple[Planned, Decision]]) -> dict[str, Any]:
    """Of a dry run. `step` and `reason` are null where no cluster was looked at."""
    decisions = {planned.release.name: decision for planned, decision in todo}
    releases = []
    for planned in plan:
        decision = decisions.get(planned.release.name)
        step = (
            {"step": decision.step, "reason": decision.reason} if decision else {"step": None, "reason": None}
        )
        releases.append(_describe(planned) | step)
    return {"releases": releases}


def record_result(plan: Sequence[Planned], result: Result, output: Path) -> dict[str, Any]:
    """Of a sweep. A release that was not started has no stage; `report` is null without a comparison."""
    state = result.state
    return {
        "comparison": state.comparison,
        "releases": [
            _describe(planned)
            | (asdict(entry) if (entry := state.releases.get(planned.release.name)) else {"stage": None})
            for planned in plan
        ],
        "report": str(output / "report.json") if result.report else None,
        "problems": list(result.problems),
    }


def _describe(planned: Planned) -> dict[str, Any]:
    release = planned.release
    return {
        "name": release.name,
        "strategy": release.strategy,
        "point": dict(release.point),
        "repeat": release.repeat,
        "processes": planned.facts.processes or None,
    }
