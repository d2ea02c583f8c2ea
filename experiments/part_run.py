"""One part of an experiment: its volume is filled, its small form swept in a rehearsal, its result kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from experiments.catalogue import Part
from experiments.prepared import fill_volume
from experiments.result import ROOT, Outcome, find_complaints, keep_result, read_report
from stratlab import UserError
from stratlab.sweep.definition import read_sweep
from stratlab.sweep.planned_release import expand


def run_part(part: Part, out: Path, keep: Path, parts: int) -> Outcome:
    """Fills the volume, runs and compares, keeps the result.

    Args:
        out: gets volume/, what the small forms read, and <experiment>/<part>/ with runs, MLflow's store and report.
        keep: <experiment>/result/<part>/ below it gets what is to stay.
        parts: of the experiment.
    """
    began = time.monotonic()
    folder = out / part.experiment / part.name
    shutil.rmtree(folder, ignore_errors=True)
    try:
        names, form = [release.name for release in expand(read_sweep(part.small))], part.form()
        _fill(part, out, folder / "runs")
    except UserError as problem:
        return Outcome(part.full_name, time.monotonic() - began, [str(problem)], {})
    command = ["stratlab", "sweep", str(part.small.relative_to(ROOT)), "--rehearse"]
    code = _run([sys.executable, "-m", *command, str(folder)])
    report = read_report(folder / "report")
    complaints = find_complaints(report, names)
    if code and not report:
        ended = f"`{' '.join(command)}` ended with exit code {code}"
        complaints = [f"{ended} and no report; its words are above [SL-sweep-no-report]"]
    elif code and not complaints:
        complaints = [f"stratlab sweep ended with exit code {code} [SL-sweep-failed]"]
    if part.form() != form:
        complaints.append("its small form was changed meanwhile: run it again [SL-form-changed]")
    outcome = Outcome(part.full_name, time.monotonic() - began, complaints, report)
    kept = keep / part.experiment / "result" / part.name
    runs = None if complaints else next(folder.glob(f"runs/{report['comparison']}"))
    keep_result(folder / "report", kept, outcome, " ".join([*command, "FOLDER"]), parts, form, runs)
    return outcome


def _fill(part: Part, out: Path, runs: Path) -> None:
    runs.mkdir(parents=True)
    fill_volume(part.prepared(), out / "volume", out / "volume" / "as-published")
    (out / "volume" / "_prepared").mkdir(parents=True, exist_ok=True)
    (runs / "_prepared").symlink_to((out / "volume" / "_prepared").resolve())


def _run(command: list[str]) -> int:
    """Its exit code; a signal that ends this program ends it first, with all that it has started."""
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
