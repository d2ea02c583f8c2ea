"""Carry out a sweep from its plan to its comparison: releases by helm, the comparison in a pod.

`carry_out` works on a cluster and on this machine (rehearsed_sweep.py). `record_plan` and `record_result` describe the
plan and the result of a sweep for --json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.pod_template import CLAIM, IMAGE, MOUNT
from stratlab.compare.publishing import build_options, compare_on_cluster
from stratlab.helm import HelmFailed
from stratlab.progress import SweepDisplay
from stratlab.sweep.definition import cannot_start
from stratlab.sweep.helm_release import Site, look_at, uninstall, work
from stratlab.sweep.planned_release import Planned
from stratlab.sweep.state import ENDED, Decision, SeenRelease, State, decide
from stratlab.sweep.tuning_loop import SweepTarget
from stratlab.user_error import UserError


@dataclass(frozen=True)
class Result:
    """Hold the result of a sweep.

    `report` belongs to the comparison, if there is one. `problems` is empty after a successful sweep.
    """

    state: State
    report: dict[str, Any] | None
    problems: list[str]


def carry_out(
    place: SweepTarget,
    plan: Sequence[Planned],
    state: State,
    output: Path,
    *,
    retry_failed: bool,
    stop_on_failure: bool,
    tuning: Mapping[str, Any] | None = None,
    varied: Sequence[str] = (),
) -> Result:
    """Bring all releases to their end, then compare the runs.

    Args:
        output: folder of the report.
        tuning, varied: how the strategies were tuned, and settings that differ on purpose; stored next to the runs.
    """
    state, problems = place.bring(plan, state, retry_failed=retry_failed, stop_on_failure=stop_on_failure)
    problems = list(problems)
    for planned in plan:
        entry = state.releases.get(planned.release.name)
        if entry is None:
            problems.append(f"{planned.release.name}: was not started [SL-run-not-started]")
        elif entry.stage == "failed":
            problems.append(f"{planned.release.name}: {entry.sentence} [SL-run-failed]")
    if not any(entry.stage == "succeeded" for entry in state.releases.values()):
        problems.append("all runs failed, so the comparison is skipped [SL-sweep-nothing-to-compare]")
        return Result(state, None, problems)
    try:
        return Result(state, place.compare(plan, state.comparison, output, tuning, varied), problems)
    except (UserError, ClusterError) as failure:
        return Result(state, None, [*problems, f"comparison: {failure}"])


@dataclass(frozen=True)
class ClusterPlace:
    """Run releases on a cluster; see `tuning_loop.SweepTarget`.

    Attributes:
        parallel: releases that run at the same time.
        counts: report how many releases get which step, instead of the finished ones.
    """

    site: Site
    parallel: int
    display: SweepDisplay
    counts: bool = False

    def bring(
        self, plan: Sequence[Planned], state: State, *, retry_failed: bool, stop_on_failure: bool
    ) -> tuple[State, list[str]]:
        todo = decide_all(plan, state, self.site, retry_failed, self.display.pass_by)
        if self.counts:
            self.display.say(count_steps(todo))
        active = []
        for planned, decision in todo:
            if decision.step != "skip":
                active.append((planned, decision))
            elif not self.counts:
                self.display.say(f"{planned.release.name}: already done")
        parallel = self.parallel
        return work(
            active, state, self.site, self.display, parallel=parallel, stop_on_failure=stop_on_failure
        )

    def compare(
        self,
        plan: Sequence[Planned],
        comparison: str,
        output: Path,
        tuning: Mapping[str, Any] | None,
        varied: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Compare the runs in a pod that mounts the results; the first release sets volume and image."""
        facts = plan[0].facts
        told = json.dumps(tuning, separators=(",", ":")) if tuning else None
        options = build_options({"tuning": told, "vary": ",".join(varied) or None})
        return compare_on_cluster(
            self.site.connection,
            self.site.namespace,
            comparison,
            claim=facts.results_claim or CLAIM,
            mount=facts.results_mount or MOUNT,
            image=facts.lab_image or IMAGE,
            certificates=facts.certificates,
            output=output,
            progress=self.display.say,
            options=[*options, *(["--keep-varied"] if varied else [])],
        )


def decide_all(
    plan: Sequence[Planned], state: State, site: Site, retry_failed: bool, progress: Callable[[str], None]
) -> list[tuple[Planned, Decision]]:
    """Decide the next step of each release; look at the cluster if the state file does not decide.

    Raises:
        UserError: with one line per release that must not change, or if the cluster cannot run the releases.
    """
    problems = check_cluster(site.connection, site.namespace, plan)
    worth_a_look, decisions = not problems, []
    for number, planned in enumerate(plan, 1):
        name = planned.release.name
        entry = state.releases.get(name)
        decision = decide(entry, SeenRelease(), planned.asked, retry_failed=retry_failed)
        if decision.step not in ("skip", "refuse") and worth_a_look:
            progress(f"checking release {number} of {len(plan)}: {name}")
            try:
                decision = decide(entry, _see(site, planned), planned.asked, retry_failed=retry_failed)
            except (HelmFailed, ClusterError) as failure:
                decision = Decision("refuse", str(failure))
        if decision.step == "refuse":
            problems.append(f"{name}: {decision.reason}")
        decisions.append((planned, decision))
    if problems:
        raise cannot_start(dict.fromkeys(problems))
    return decisions


def check_cluster(connection: Connection, namespace: str, plan: Sequence[Planned]) -> list[str]:
    """Yield the resources that are missing for every release; skip resources that this account may not read."""
    core = f"/api/v1/namespaces/{namespace}"
    wanted = {core: f"namespace {namespace} does not exist [SL-namespace-missing]"}
    for planned in plan:
        claim = planned.facts.results_claim or CLAIM
        api = planned.api
        absent = f"namespace {namespace} has no claim {claim} [SL-claim-missing]"
        wanted[f"{core}/persistentvolumeclaims/{claim}"] = absent
        absent = f"the cluster does not serve {api.kind} ({api.group_version}) [SL-sweep-api-not-served]"
        wanted[f"/apis/{api.group_version}"] = absent
    problems = []
    for path, sentence in wanted.items():
        try:
            connection.get(path)
        except ClusterError as failure:
            if failure.status not in (401, 403, 404):
                return [str(failure)]
            if failure.status != 403:
                problems.append(sentence if failure.status == 404 else str(failure))
    return problems


def _see(site: Site, planned: Planned) -> SeenRelease:
    seen = look_at(site.helm, site.namespace, planned.release.name, site.context)
    if not seen.status:
        return seen
    try:
        site.connection.get(planned.api.path(site.namespace, planned.release.name))
    except ClusterError as failure:
        if failure.status != 404:
            raise
        return seen
    return SeenRelease(seen.status, seen.asked, has_workload=True)


def uninstall_ended(names: Iterable[str], state: State, site: Site, say: Callable[[str], None]) -> list[str]:
    """Remove the releases whose run has ended, successful or not; results and logs stay on the volume.

    Return the failures.
    """
    problems = []
    for name in names:
        entry = state.releases.get(name)
        if entry and entry.stage in ENDED:
            say(f"uninstalling {name}")
            try:
                uninstall(site.helm, site.namespace, name, site.context)
            except HelmFailed as failure:
                problems.append(f"{name}: {failure}")
    return problems


def count_steps(todo: Sequence[tuple[Planned, Decision]]) -> str:
    """Summarize as `12 releases: 3 skip, 1 join, 8 install`, with the reasons of the skipped releases."""
    steps = [decision.step for _, decision in todo]
    counts = ", ".join(f"{steps.count(step)} to {step}" for step in dict.fromkeys(steps))
    reasons = [f"  {p.release.name} {d.reason}" for p, d in todo if d.step in ("skip", "join", "reinstall")]
    return "\n".join([f"{len(steps)} releases: {counts}", *reasons])


def record_plan(plan: Sequence[Planned], todo: Sequence[tuple[Planned, Decision]]) -> dict[str, Any]:
    """Describe a dry run. `step` and `reason` are null if no cluster was checked."""
    decisions = {planned.release.name: asdict(decision) for planned, decision in todo}
    unknown = {"step": None, "reason": None}
    return {"releases": [_describe(each) | decisions.get(each.release.name, unknown) for each in plan]}


def record_result(plan: Sequence[Planned], result: Result, output: Path) -> dict[str, Any]:
    """Describe a sweep. A release that was not started has no stage; `report` is null without a comparison."""
    state = result.state
    entries = {name: asdict(entry) for name, entry in state.releases.items()}
    return {
        "comparison": state.comparison,
        "releases": [_describe(each) | entries.get(each.release.name, {"stage": None}) for each in plan],
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
