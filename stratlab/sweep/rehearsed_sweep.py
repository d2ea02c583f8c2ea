"""Tune, run and compare a whole sweep on this machine, in one folder.

Its releases are local processes, one after the other, as in `stratlab rehearse`. The folder holds
runs/<comparison>/<release>, mlflow/, and the state of the sweep.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratlab.compare.comparison import compare
from stratlab.compare.publishing import log_to_store
from stratlab.compare.report_files import write_report
from stratlab.compare.run_sources import keep_tuning, keep_varied, load_runs, read_tuning
from stratlab.helm import write_values
from stratlab.processes import tail
from stratlab.progress import SweepDisplay
from stratlab.rehearsal import rehearse_run
from stratlab.rehearsal_plan import PlannedRun, RehearsalRequest, build_rehearsal_plan, make_folder
from stratlab.run_directory.record import read_run
from stratlab.sweep.cluster_sweep import Result, carry_out
from stratlab.sweep.definition import cannot_start, list_varied
from stratlab.sweep.planned_release import Planned, build_sweep_plan
from stratlab.sweep.state import SeenRelease, State, decide, only_one, read_state
from stratlab.sweep.tuning_loop import Workbench, tune_strategies
from stratlab.sweep.tuning_search import name_tuning
from stratlab.tracking_server import run_server


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
