"""A whole sweep on this machine: tuned, run, compared, in one folder.

A sweep on this machine: its releases as local processes, one after the other, as `stratlab rehearse` runs charts.

In the folder of the rehearsal: runs/<comparison>/<release>, mlflow/, and the state of the sweep.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratlab.compare.comparison import compare
from stratlab.compare.publishing import log_to_store
from stratlab.compare.report_files import write_report
from stratlab.compare.run_sources import keep_tuning, keep_varied, load_runs, read_tuning
from stratlab.processes import free_port, tail
from stratlab.progress import SweepDisplay
from stratlab.rehearsal import rehearse_run
from stratlab.rehearsal_plan import PlannedRun, Request, build_rehearsal_plan, make_folder
from stratlab.run_directory.record import read_run
from stratlab.sweep.cluster_sweep import Result, conclude
from stratlab.sweep.definition import cannot_start, list_varied
from stratlab.sweep.planned_release import Planned, build_sweep_plan
from stratlab.sweep.state import Seen, State, decide, only_one, read_state
from stratlab.sweep.tuning_loop import Workbench, tune_strategies
from stratlab.sweep.tuning_search import name_tuning
from stratlab.tracking_server import run_server


@dataclass(frozen=True)
class RehearsedPlace:
    """See `sweep_place.Place`. `tracking_uri`: of the server that runs beside it."""

    folder: Path
    tracking_uri: str
    display: SweepDisplay

    def bring(
        self, plan: Sequence[Planned], state: State, *, retry_failed: bool, stop_on_failure: bool
    ) -> tuple[State, list[str]]:
        decisions = [
            decide(state.releases.get(each.release.name), Seen(), each.asked, retry_failed=retry_failed)
            for each in plan
        ]
        names = [each.release.name for each in plan]
        refused = [
            f"{name}: {each.reason}"
            for name, each in zip(names, decisions, strict=True)
            if each.step == "refuse"
        ]
        if refused:
            raise cannot_start(refused)
        for planned, decision in zip(plan, decisions, strict=True):
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
        """One release to its end: what is left of an earlier attempt at it goes, for a restarted run is not judged."""
        name = planned.release.name
        with tempfile.TemporaryDirectory() as folder:
            values = Path(folder) / "values.json"
            values.write_text(json.dumps(planned.values))
            request = Request(
                charts=[planned.chart],
                results=self.folder / "runs",
                mlflow=self.folder / "mlflow",
                values=[values],
                name=name,
                analysis=planned.values["run"]["config"].get("profile_steps") != 0,
                replace=name in state.releases,
            )
            (run,) = build_rehearsal_plan(request, self.tracking_uri)
            state = state.record(
                name, stage="running", asked=planned.asked, sentence="", started=time.time(), ended=0.0
            )
            end = rehearse_run(run, request, self.display.display)
        sentence = "" if end.code == 0 else _say_failure(run, end.code)
        stage = "succeeded" if end.code == 0 else "failed"
        return state.record(name, stage=stage, sentence=sentence, ended=time.time()), end.code == 0


@contextmanager
def rehearsed_place(folder: Path, display: SweepDisplay) -> Iterator[RehearsedPlace]:
    """The place, with its MLflow server for as long as it lasts."""
    make_folder(folder / "mlflow")
    port = free_port()
    with run_server(folder / "mlflow", port, progress=display.say):
        yield RehearsedPlace(folder, f"http://127.0.0.1:{port}", display)


def _say_failure(run: PlannedRun, code: int) -> str:
    found = read_run(run.run_dir) if run.run_dir.is_dir() else None
    if found and found.status in ("failed", "stopped"):
        return found.ending
    logs = sorted(run.logs.glob("*.log")) if run.logs.is_dir() else []
    last = tail(logs[0]).splitlines()[-1:] if logs else []
    return ": ".join([f"exit code {code}", *last])


NO_CLUSTER = "rehearsal"
"""Stands for the namespace in the state of a rehearsed sweep."""


def rehearse_sweep(
    bench: Workbench, folder: Path, output: Path | None, *, retry_failed: bool, stop_on_failure: bool
) -> Result:
    """Runs what a cluster would be asked for, one release after the other; the state in the folder knows how far.

    Args:
        folder: gets runs/, mlflow/, sweep.state.json, and with a tuning tuning.state.json and tuning-report/.
        output: of the report; None = report/ in the folder.

    Raises:
        UserError: the folder is at work, or belongs to another sweep; the tuning could not be done.
    """
    folder = folder.expanduser().resolve()
    make_folder(folder)
    sweep, display = bench.sweep, bench.display
    state_file, record, releases = folder / "sweep.state.json", None, None
    with only_one(state_file):
        state = read_state(state_file, sweep.comparison, NO_CLUSTER)
        tuning_state = read_state(folder / "tuning.state.json", name_tuning(sweep.comparison), NO_CLUSTER)
        with rehearsed_place(folder, display) as place:
            if sweep.tune:
                releases, record = tune_strategies(
                    bench, place, tuning_state, folder / "tuning-report", retry_failed=retry_failed
                )
            plan = build_sweep_plan(sweep, bench.folder, bench.helm, display.pass_by, releases)
            state, problems = place.bring(
                plan, state, retry_failed=retry_failed, stop_on_failure=stop_on_failure
            )
            report = output or folder / "report"
            return conclude(
                plan,
                state,
                problems,
                lambda: place.compare(plan, sweep.comparison, report, record, list_varied(sweep)),
            )
