"""Define the command line: one thin command per verb. Each command imports slow modules itself.

Exit codes: 0 done, 1 failed, 2 wrong input, 13 the volume is full, otherwise the run's own code (docs/stops.md). Code 3
means missing data: no such folder of results, no run or no traces in it, no data. A bug shows its traceback and ends
with 1, so that the same command may be tried again.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer

from stratlab import UserError
from stratlab.commands.analyze import analyze
from stratlab.commands.calibrate import calibrate
from stratlab.commands.cluster import check, logs, wait, watch
from stratlab.commands.compare import JsonOrFile, compare
from stratlab.commands.expect import expect
from stratlab.commands.local import demo, rehearse, render
from stratlab.commands.mlflow import export, metrics, mlflow, verify
from stratlab.commands.predict import predict
from stratlab.commands.recommend import recommend
from stratlab.commands.results import fetch, list_runs, remove
from stratlab.commands.run import run
from stratlab.commands.sweep import sweep

STORAGE_FULL = 13

app = typer.Typer(
    help="Find out which distributed-training strategy is best for your model on your GPUs.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


@app.callback()
def start(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    """Find out which distributed-training strategy is best for your model on your GPUs."""


app.command(short_help="Train a model with a strategy, or compare several, by one line.")(run)
app.command(short_help="Compare three strategies on this machine, as a demonstration.")(demo)
app.command(short_help="Run strategy charts on this machine, as processes.")(rehearse)
app.command(short_help="Print a script that starts a run without Kubernetes.")(render)
app.command(short_help="Predict whether runs fit their GPUs, before the first one starts.")(predict)
app.command(short_help="Recommend a strategy and settings, with the files that start it.")(recommend)
app.command(short_help="Show the speed that others measured for runs like yours.")(expect)
app.command(short_help="Measure this machine, for predictions of step times.")(calibrate)
app.command(short_help="Wait until a run has ended.")(wait)
app.command(short_help="Watch a run on the cluster until it ends.")(watch)
app.command("list", short_help="List the runs of a folder or of a cluster.")(list_runs)
app.command(short_help="Show the log of a rank.")(logs)
app.command(short_help="Fetch a run's folder from a cluster.")(fetch)
app.command(short_help="Check whether a cluster is ready for runs.")(check)
app.command(short_help="Remove the folder of a run.")(remove)
app.command(short_help="Run a matrix of settings on the cluster, and compare.")(sweep)
app.command(short_help="Analyze the traces of a run.")(analyze)
app.command(short_help="Check that a finished run is complete, here and in MLflow.")(verify)
app.command(short_help="Compare the runs of a folder or of an MLflow experiment.", cls=JsonOrFile)(compare)
app.command(short_help="Serve the MLflow store of a rehearsal.")(mlflow)
app.add_typer(export, name="export", short_help="Export runs to TensorBoard or Weights & Biases.")
app.add_typer(metrics, name="metrics", short_help="Send missing metrics to MLflow; serve runs to Prometheus.")


def main() -> None:
    """Run the console script. UserError reports wrong input; any other exception is a bug, with its traceback."""
    from stratlab.machine import Interrupted, trust_given

    if sys.stdout is None:  # `stratlab list >&-`: standard output is closed
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        trust_given(os.environ)
        app()
    except UserError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        sys.exit(wrong.exit_code)
    except Interrupted as stop:
        print(f"stopped by {stop}", file=sys.stderr)
        sys.exit(stop.code)
    except Exception as failure:
        from stratlab.cluster import ClusterError
        from stratlab.machine import say_refused
        from stratlab.tracking_server import ServerFailed

        if isinstance(failure, OSError) and failure.errno in (errno.ENOSPC, errno.EDQUOT):
            print(
                f"error: storage full: {failure}; free space and try again [SL-storage-full]", file=sys.stderr
            )
            sys.exit(STORAGE_FULL)
        if refused := say_refused(failure):
            print(f"error: {refused}", file=sys.stderr)
            sys.exit(UserError.exit_code)
        if not isinstance(failure, ServerFailed | ClusterError):
            raise
        print(f"error: {failure}", file=sys.stderr)
        sys.exit(1)
