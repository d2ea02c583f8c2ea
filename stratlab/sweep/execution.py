"""Carry out a sweep from its plan to its comparison, on a cluster or on this machine.

On a cluster, releases are installed by helm and compared in a pod. On this machine, they are local processes, one after
the other, as in `stratlab rehearse`; one folder holds runs/<comparison>/<release>, mlflow/, and the state of the sweep.
`carry_out` serves both. `record_plan` and `record_result` describe the plan and the result of a sweep for --json.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stratlab import UserError
from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.pod_template import CLAIM, IMAGE, MOUNT
from stratlab.compare.comparison import compare
from stratlab.compare.publishing import build_options, compare_on_cluster, log_to_store
from stratlab.compare.report_files import write_report
from stratlab.compare.run_sources import keep_tuning, keep_varied, load_runs, read_tuning
from stratlab.helm import HelmFailed, write_values
from stratlab.machine import tail
from stratlab.progress import SweepDisplay
from stratlab.rehearsal import rehearse_run
from stratlab.rehearsal_plan import PlannedRun, RehearsalRequest, build_rehearsal_plan, make_folder
from stratlab.run_directory.record import read_run
from stratlab.sweep.definition import cannot_start, list_varied
from stratlab.sweep.helm_release import Site, look_at, uninstall, work
from stratlab.sweep.planned_release import Planned, build_sweep_plan
from stratlab.sweep.state import ENDED, Decision, SeenRelease, State, decide, only_one, read_state
from stratlab.sweep.tuning_loop import SweepTarget, Workbench, tune_strategies
from stratlab.sweep.tuning_search import name_tuning
from stratlab.tracking_server import run_server


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


@dataclass(frozen=True)
class RehearsedPlace:
    """Run releases on this machine; see `tuning_loop.SweepTarget`. `tracking_uri`: of its own MLflow server."""

    folder: Path
    tracking_uri: str
    display: SweepDisplay

    def bring(
        self, plan: Sequence[Planned], state: State, *, retry_failed: bool, stop_on_failure: bool
    ) -> tuple[State, list[str]]:
        todo = []
        for planned in plan:
            entry = state.releases.get(planned.release.name)
            todo.append((planned, decide(entry, SeenRelease(), planned.asked, retry_failed=retry_failed)))
        if refused := [f"{each.release.name}: {d.reason}" for each, d in todo if d.step == "refuse"]:
            raise cannot_start(refused)
        for planned, decision in todo:
            if decision.step == "skip":
                self.display.say(f"{planned.release.name}: already done")
                continue
            state, succeeded = self._run(planned, state)
            if stop_on_failure and not succeeded:
                self.display.say(f"stopped after a failure of {planned.release.name}")
                break
        return state, []

    def compare(
        self,
        plan: Sequence[Planned],
        comparison: str,
        output: Path,
        tuning: Mapping[str, Any] | None,
        varied: Sequence[str] = (),
    ) -> dict[str, Any]:
        folder = self.folder / "runs" / comparison
        runs = load_runs(folder)
        if tuning:
            keep_tuning(folder, tuning)
        report = compare(runs, tuning=read_tuning(folder), varied=varied)
        if varied:
            keep_varied(folder, varied)
        write_report(report, runs, output)
        self.display.say(log_to_store(report, output, self.tracking_uri, self.folder / "mlflow"))
        return report

    def _run(self, planned: Planned, state: State) -> tuple[State, bool]:
        """Run one release to its end. Remove an earlier attempt first, because a restarted run is not judged."""
        name = planned.release.name
        with write_values(planned.values) as values:
            request = RehearsalRequest(
                charts=[planned.chart],
                results=self.folder / "runs",
                mlflow=self.folder / "mlflow",
                values=[values],
                name=name,
                analysis=planned.values["run"]["config"].get("profile_steps") != 0,
                replace=name in state.releases,
            )
            (run,) = build_rehearsal_plan(request, self.tracking_uri)
            fresh = {"sentence": "", "started": time.time(), "ended": 0.0}
            state = state.record(name, stage="running", asked=planned.asked, **fresh)
            end = rehearse_run(run, request, self.display)
        sentence = "" if end.code == 0 else _say_failure(run, end.code)
        stage = "succeeded" if end.code == 0 else "failed"
        return state.record(name, stage=stage, sentence=sentence, ended=time.time()), end.code == 0


def _say_failure(run: PlannedRun, code: int) -> str:
    found = read_run(run.run_dir) if run.run_dir.is_dir() else None
    if found and found.status in ("failed", "stopped"):
        return found.ending
    logs = sorted(run.logs.glob("*.log")) if run.logs.is_dir() else []
    last = tail(logs[0]).splitlines()[-1:] if logs else []
    return ": ".join([f"exit code {code}", *last])


NO_CLUSTER = "rehearsal"
"""Replaces the namespace in the state of a rehearsed sweep."""


def rehearse_sweep(
    bench: Workbench, folder: Path, output: Path | None, *, retry_failed: bool, stop_on_failure: bool
) -> Result:
    """Run the releases one after the other; the state in the folder records the progress.

    Args:
        folder: receives runs/, mlflow/, sweep.state.json, and with a tuning tuning.state.json and tuning-report/.
        output: folder of the report; None = report/ in the folder.

    Raises:
        UserError: the folder is in use or belongs to another sweep, or the tuning failed.
    """
    folder = folder.expanduser().resolve()
    make_folder(folder)
    sweep, display = bench.sweep, bench.display
    state_file, record, releases = folder / "sweep.state.json", None, None
    with only_one(state_file):
        state = read_state(state_file, sweep.comparison, NO_CLUSTER)
        tuning_state = read_state(folder / "tuning.state.json", name_tuning(sweep.comparison), NO_CLUSTER)
        make_folder(folder / "mlflow")
        with run_server(folder / "mlflow", progress=display.say) as uri:
            place = RehearsedPlace(folder, uri, display)
            if sweep.tune:
                releases, record = tune_strategies(
                    bench, place, tuning_state, folder / "tuning-report", retry_failed=retry_failed
                )
            plan = build_sweep_plan(sweep, bench.folder, bench.helm, display.pass_by, releases)
            return carry_out(
                place,
                plan,
                state,
                output or folder / "report",
                retry_failed=retry_failed,
                stop_on_failure=stop_on_failure,
                tuning=record,
                varied=list_varied(sweep),
            )
