"""The verb `stratlab analyze`: its options, and what it prints."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from stratlab.options import RunDirectory, TrackingUri

MISSING = 3


def analyze(run_dir: RunDirectory, tracking_uri: TrackingUri = "") -> None:
    """Analyze the traces of the run in RUN_DIR, write a report beside them, and add it to the MLflow run.

    Of a run that finished without traces the report holds what the run measured by itself. Exit code 3: there
    is no run in RUN_DIR, its traces cannot be read, or it did not finish and left none.

    Example: stratlab analyze results/demo/ddp
    """
    from stratlab.analysis.analyze import NoTraces, analyze_run
    from stratlab.analysis.reporting.run_facts import NoRun
    from stratlab.tracking.mlflow_run import close_ended_run

    try:
        report = analyze_run(run_dir, tracking_uri=tracking_uri or None, progress=_say)
    except (NoTraces, NoRun) as missing:
        _fail(str(missing), MISSING)
    finally:  # the analysis comes last: a run that is still open in MLflow would stay so
        if tracking_uri and (done := close_ended_run(run_dir, tracking_uri)):
            _say(done)
    from stratlab.analysis.pages.part_names import say_headline
    from stratlab.analysis.pages.untraced import say_untraced

    if report["source"] is None:
        _say(say_untraced(report))
        _say(f"report: {run_dir / 'analysis' / 'report.html'}")
        return
    mean = report["mean"]
    origin = f"{report['source']} traces, backend {report['backend']}, {report['device']}"
    _say(f"mean of {mean['steps']} steps on {mean['ranks']} ranks ({origin}):")
    _say(say_headline(report))
    for entry in report["recommendations"]:
        _say(f"  {entry['severity']}, {entry['rule']}: {entry['title']}")
    _say(f"report: {run_dir / 'analysis' / 'report.html'}")
    failed = [row for row in report["hta"] if row["status"] == "failed"]
    for row in failed:
        _say(f"warning: Holistic Trace Analysis, {row['analysis']}: {row['reason']}")
    if failed and not any(row["status"] == "ok" for row in report["hta"]):
        _fail("every analysis of Holistic Trace Analysis failed; the rest of the report is there", 1)


def _say(text: str) -> None:
    print(text, flush=True)


def _fail(sentence: str, code: int) -> NoReturn:
    print(f"error: {sentence}", file=sys.stderr)
    raise typer.Exit(code)
