"""A whole sweep on this machine: tuned, run, compared, in one folder."""

from __future__ import annotations

from pathlib import Path

from stratlab.rehearse.folders import make_folder
from stratlab.sweep.definition import list_varied
from stratlab.sweep.planned_release import build_plan
from stratlab.sweep.rehearsed_place import rehearsed_place
from stratlab.sweep.state import only_one, read_state
from stratlab.sweep.sweep import Result, conclude
from stratlab.sweep.tuning.candidates import name_tuning
from stratlab.sweep.tuning.tuning_loop import Workbench, tune_strategies

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
            plan = build_plan(sweep, bench.folder, bench.helm, display.pass_by, releases)
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
