"""A sweep on a cluster: releases by helm, comparisons in a pod that mounts the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratlab.sweep.planned_release import Planned
from stratlab.sweep.state import State
from stratlab.sweep.sweep import compare_there, decide_all
from stratlab.sweep.sweep_display import SweepDisplay
from stratlab.sweep.work import Site, work


@dataclass(frozen=True)
class ClusterPlace:
    """See `sweep_place.Place`. `parallel`: releases at work at the same time."""

    site: Site
    parallel: int
    display: SweepDisplay

    def bring(
        self, plan: Sequence[Planned], state: State, *, retry_failed: bool, stop_on_failure: bool
    ) -> tuple[State, list[str]]:
        todo = decide_all(plan, state, self.site, retry_failed, self.display.pass_by)
        for planned, decision in todo:
            if decision.step == "skip":
                self.display.say(f"{planned.release.name}: already done")
        active = [(planned, decision) for planned, decision in todo if decision.step != "skip"]
        return work(
            active, state, self.site, self.display, parallel=self.parallel, stop_on_failure=stop_on_failure
        )

    def compare(
        self,
        plan: Sequence[Planned],
        comparison: str,
        output: Path,
        tuning: Mapping[str, Any] | None,
        varied: Sequence[str] = (),
    ) -> dict[str, Any]:
        return compare_there(self.site, plan, comparison, output, tuning, self.display.say, varied)
