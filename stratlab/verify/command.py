"""The verb `stratlab verify`: its options, and what it prints."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from stratlab.options import RunDirectory, TrackingUri


def verify(
    run_dir: RunDirectory,
    tracking_uri: TrackingUri = "",
    report: Annotated[bool, typer.Option(help="Whether an analysis belongs to the run.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: a list of checks, at the end.")] = False,
) -> None:
    """Check that the run in RUN_DIR is whole: files, ranks, traces, report, and the same in MLflow.

    One line per check. Without --tracking-uri the server is the one in mlflow.json; that of a rehearsal
    has ended with it, and is not asked then. Exit code 1: a check failed.

    Example: stratlab verify results/runs/demo/ddp --tracking-uri http://localhost:5000
    """
    from stratlab.verify.checks import verify_run

    lines = []
    for line in verify_run(run_dir, tracking_uri or None, with_report=report):
        lines.append(line)
        if not as_json:
            print(line, flush=True)
    if as_json:
        print(json.dumps([dataclasses.asdict(line) for line in lines], indent=1))
    if any(line.state == "failed" for line in lines):
        raise typer.Exit(1)
