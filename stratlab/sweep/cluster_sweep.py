"""A sweep from its file to its comparison.

A sweep on a cluster: releases by helm, comparisons in a pod that mounts the results.

What a sweep would do, and what it has done, as objects for --json.
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
from stratlab.compare.publishing import build_options, check_output, compare_on_cluster
from stratlab.progress import SweepDisplay
from stratlab.sweep.definition import cannot_start
from stratlab.sweep.helm_release import HelmFailed, Progress, Site, look_at, uninstall, work
from stratlab.sweep.planned_release import Planned
from stratlab.sweep.state import ENDED, Decision, Seen, State, decide
from stratlab.user_error import UserError


@dataclass(frozen=True)
class Choices:
    """The options of one start. `output` is where the report goes; `tuning` and `varied` are kept beside the runs."""

    parallel: int
    stop_on_failure: bool
    output: Path
    tuning: Mapping[str, Any] | None = None
    varied: Sequence[str] = ()


@dataclass(frozen=True)
class Result:
    """`report` is that of the comparison, if there is one; `problems` is empty after a sweep that went well."""

    state: State
    report: dict[str, Any] | None
    problems: list[str]


def decide_all(
    plan: Sequence[Planned], state: State, site: Site, retry_failed: bool, progress: Callable[[str], None]
) -> list[tuple[Planned, Decision]]:
    """What to do with each release, after a look at the cluster where the state file does not settle it.

    Raises:
        UserError: with one line per release that must not be touched, or a cluster that cannot run them.
    """
    problems = check_cluster(site.connection, site.namespace, plan)
    worth_a_look, decisions = not problems, []
    for number, planned in enumerate(plan, 1):
        name = planned.release.name
        entry = state.releases.get(name)
        decision = decide(entry, Seen(), planned.asked, retry_failed=retry_failed)
        if decision.step not in ("skip", "refuse") and worth_a_look:
            progress(f"looking at {number} of {len(plan)}: {name}")
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
    """What is missing in the cluster for every release; what may not be looked at is not called missing."""
    wanted = {f"/api/v1/namespaces/{namespace}": f"there is no namespace {namespace} [SL-namespace-missing]"}
    for planned in plan:
        claim = planned.facts.results_claim or CLAIM
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}"
        wanted[path] = f"namespace {namespace} has no claim {claim} [SL-claim-missing]"
        api = planned.api
        wanted[f"/apis/{api.group_version}"] = (
            f"the cluster does not serve {api.kind} ({api.group_version}) [SL-sweep-api-not-served]"
        )
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


def run_sweep(
    todo: Sequence[tuple[Planned, Decision]],
    state: State,
    site: Site,
    choices: Choices,
    progress: Progress,
) -> Result:
    """Brings all releases to their end, then compares what there is."""
    check_output(choices.output)
    active = [(planned, decision) for planned, decision in todo if decision.step != "skip"]
    state, problems = work(
        active,
        state,
        site,
        progress,
        parallel=choices.parallel,
        stop_on_failure=choices.stop_on_failure,
    )
    plan = [planned for planned, _ in todo]
    return conclude(
        plan,
        state,
        problems,
        lambda: compare_there(
            site, plan, state.comparison, choices.output, choices.tuning, progress.say, choices.varied
        ),
    )


def conclude(
    plan: Sequence[Planned], state: State, problems: Sequence[str], compare: Callable[[], dict[str, Any]]
) -> Result:
    """What came of the runs, and their comparison where there is anything to compare.

    Args:
        problems: known already.
        compare: returns the report.
    """
    found = list(problems)
    for planned in plan:
        entry = state.releases.get(planned.release.name)
        if entry is None:
            found.append(f"{planned.release.name}: was not started [SL-run-not-started]")
        elif entry.stage == "failed":
            found.append(f"{planned.release.name}: {entry.sentence} [SL-run-failed]")
    if not any(entry.stage == "succeeded" for entry in state.releases.values()):
        found.append("no run has succeeded, so there is nothing to compare [SL-sweep-nothing-to-compare]")
        return Result(state, None, found)
    try:
        return Result(state, compare(), found)
    except (UserError, ClusterError) as failure:
        return Result(state, None, [*found, f"comparison: {failure}"])


def compare_there(
    site: Site,
    plan: Sequence[Planned],
    comparison: str,
    output: Path,
    tuning: Mapping[str, Any] | None,
    say: Callable[[str], None],
    varied: Sequence[str] = (),
) -> dict[str, Any]:
    """Compares in a pod that mounts the results; the report comes to `output`.

    Args:
        plan: of the comparison; the first release names volume and image.
        tuning: how the strategies were tuned, kept beside the runs.
        varied: settings that the runs are meant to differ in, kept beside them as well.

    Raises:
        UserError, ClusterError: as `compare_on_cluster`.
    """
    facts = plan[0].facts
    return compare_on_cluster(
        site.connection,
        site.namespace,
        comparison,
        claim=facts.results_claim or CLAIM,
        mount=facts.results_mount or MOUNT,
        image=facts.lab_image or IMAGE,
        certificates=facts.certificates,
        output=output,
        progress=say,
        options=[
            *build_options(
                {
                    "tuning": json.dumps(tuning, separators=(",", ":")) if tuning else None,
                    "varied": ",".join(varied) or None,
                }
            ),
            *(["--keep-varied"] if varied else []),
        ],
    )


def uninstall_ended(names: Iterable[str], state: State, site: Site, say: Callable[[str], None]) -> list[str]:
    """Removes the releases whose run has ended, well or not; results and logs of the ranks stay on the volume.

    Returns what did not go.
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


def _see(site: Site, planned: Planned) -> Seen:
    seen = look_at(site.helm, site.namespace, planned.release.name, site.context)
    if not seen.status:
        return seen
    try:
        site.connection.get(planned.api.path(site.namespace, planned.release.name))
    except ClusterError as failure:
        if failure.status != 404:
            raise
        return seen
    return Seen(seen.status, seen.asked, has_workload=True)


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
