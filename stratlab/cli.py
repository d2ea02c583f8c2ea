"""The command line: one thin command per verb. What is heavy is imported inside the command that needs it.

Exit codes: 0 done, 1 it could not be done, 2 what was typed is wrong, 3 data or traces are missing, 13 the volume is
full, otherwise the run's own code. A bug keeps its traceback, and ends with 1: the same command may be tried again.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from stratlab.check.command import check
from stratlab.logs.command import logs
from stratlab.rehearse.command import rehearse
from stratlab.remove.command import remove
from stratlab.sweep.command import sweep
from stratlab.tracking_uri import check_tracking_uri
from stratlab.user_error import UserError
from stratlab.wait.command import wait
from stratlab.watch.command import watch

if TYPE_CHECKING:
    from rich.console import Console

WRONG_INPUT = 2
MISSING = 3
STORAGE_FULL = 13

app = typer.Typer(
    help="Find out which distributed-training strategy is best for your model on your GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

RunDirectory = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", help="One run: RESULTS/COMPARISON/RUN.", show_default=False)
]
TrackingUri = Annotated[
    str,
    typer.Option(
        "--tracking-uri",
        envvar="MLFLOW_TRACKING_URI",
        callback=check_tracking_uri,
        help="The MLflow server.",
    ),
]


@app.callback()
def start(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    """Find out which distributed-training strategy is best for your model on your GPUs."""


app.command(short_help="Run strategy charts on this machine, as processes.")(rehearse)


app.command(short_help="Wait until a run has ended.")(wait)
app.command(short_help="Watch a run on the cluster until it ends.")(watch)
app.command(short_help="Show the log of a rank.")(logs)
app.command(short_help="Check whether a cluster is ready for runs.")(check)
app.command(short_help="Remove the folder of a run.")(remove)
app.command(short_help="Run a matrix of settings on the cluster, and compare.")(sweep)


@app.command(short_help="Analyze the traces of a run.")
def analyze(run_dir: RunDirectory, tracking_uri: TrackingUri = "") -> None:
    """Analyze the traces of the run in RUN_DIR, write a report beside them, and add it to the MLflow run.

    Of a run that finished without traces the report holds what the run measured by itself. Exit code 3: there
    is no run in RUN_DIR, its traces cannot be read, or it did not finish and left none.

    Example: stratlab analyze results/demo/ddp
    """
    from stratlab.analysis.analyze import NoTraces, analyze_run
    from stratlab.analysis.run_facts import NoRun
    from stratlab.mlflow_run import close_ended_run

    try:
        report = analyze_run(run_dir, tracking_uri=tracking_uri or None, progress=_print_line)
    except (NoTraces, NoRun) as missing:
        _fail(str(missing), MISSING)
    finally:  # the analysis comes last: a run that is still open in MLflow would stay so
        if tracking_uri and (done := close_ended_run(run_dir, tracking_uri)):
            _print_line(done)
    from stratlab.analysis.pages.part_names import say_headline
    from stratlab.analysis.untraced import say_untraced

    if report["source"] is None:
        _print_line(say_untraced(report))
        _print_line(f"report: {run_dir / 'analysis' / 'report.html'}")
        return
    mean = report["mean"]
    origin = f"{report['source']} traces, backend {report['backend']}, {report['device']}"
    _print_line(f"mean of {mean['steps']} steps on {mean['ranks']} ranks ({origin}):")
    _print_line(say_headline(report))
    for entry in report["recommendations"]:
        _print_line(f"  {entry['severity']}, {entry['rule']}: {entry['title']}")
    _print_line(f"report: {run_dir / 'analysis' / 'report.html'}")
    failed = [row for row in report["hta"] if row["status"] == "failed"]
    for row in failed:
        _print_line(f"warning: Holistic Trace Analysis, {row['analysis']}: {row['reason']}")
    if failed and not any(row["status"] == "ok" for row in report["hta"]):
        _fail("every analysis of Holistic Trace Analysis failed; the rest of the report is there", 1)


@app.command(short_help="Check that a finished run is whole, here and in MLflow.")
def verify(
    run_dir: RunDirectory,
    tracking_uri: TrackingUri = "",
    report: Annotated[bool, typer.Option(help="Whether an analysis belongs to the run.")] = True,
) -> None:
    """Check that the run in RUN_DIR is whole: files, ranks, traces, report, and the same in MLflow.

    One line per check. Without --tracking-uri the server is the one in mlflow.json. Exit code 1: a check failed.

    Example: stratlab verify results/demo/ddp --tracking-uri http://localhost:5000
    """
    from stratlab.verify import verify_run

    failed = 0
    for line in verify_run(run_dir, tracking_uri or None, with_report=report):
        _print_line(str(line))
        failed += line.state == "failed"
    if failed:
        raise typer.Exit(1)


@app.command(short_help="Compare the runs of a folder or of an MLflow experiment.")
def compare(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="A comparison: RESULTS/COMPARISON.", show_default=False),
    ] = None,
    experiment: Annotated[str | None, typer.Option(help="An MLflow experiment instead of a folder.")] = None,
    tracking_uri: TrackingUri = "",
    mlflow_store: Annotated[
        Path | None,
        typer.Option("--mlflow", metavar="FOLDER", help="The report goes into this store of a rehearsal."),
    ] = None,
    as_json: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Also write report.json there; - prints it alone."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the report goes; DIR/report if left out.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Explain the others against this run; the fastest if left out."),
    ] = None,
    memory_limit_gib: Annotated[
        float | None, typer.Option(metavar="GIB", help="Of one device: name the fastest run that fits.")
    ] = None,
    on_cluster: Annotated[
        bool, typer.Option("--on-cluster", help="DIR names a comparison on the results volume of a cluster.")
    ] = False,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="With --on-cluster; the context's if left out.")
    ] = None,
    claim: Annotated[
        str,
        typer.Option(help="With --on-cluster: the results claim; that of the comparison's runs if left out."),
    ] = "",
    mount: Annotated[
        str, typer.Option(help="With --on-cluster: where runs see the claim; as they say if left out.")
    ] = "",
    image: Annotated[
        str, typer.Option(help="With --on-cluster: image of the pod; that of the runs' analysis if left out.")
    ] = "",
) -> None:
    """Compare the runs in DIR, or those of an MLflow experiment, say why they differ, and write a report.

    The report also goes to MLflow, beside the runs: to --tracking-uri, or where the runs were sent to.

    With --on-cluster a pod compares the runs where they are, and the report comes back to --output.

    Example: stratlab compare results/demo

    Example: stratlab compare demo --on-cluster --namespace stratlab
    """
    if (folder is None) == (experiment is None):
        raise UserError("give either DIR or --experiment NAME")
    if as_json and as_json != "-":
        from stratlab.compare.write import check_file

        check_file(Path(as_json))
    if on_cluster:
        from stratlab.compare.on_cluster import compare_for_user

        if experiment:
            raise UserError("--on-cluster compares a folder of the volume; leave --experiment out")
        asked = {"baseline": baseline, "memory_limit_gib": memory_limit_gib}
        compare_for_user(str(folder), namespace, claim, mount, image, output, as_json, asked)
        return
    if experiment and not tracking_uri:
        raise UserError("--experiment needs --tracking-uri URI or MLFLOW_TRACKING_URI")
    from stratlab import compare as comparing

    output = output or (folder / "report" if folder else Path(f"{experiment}-report"))
    if folder:
        runs = comparing.load_runs(folder)
    else:
        assert experiment
        runs = comparing.load_experiment(experiment, tracking_uri, output / "runs")
    report = comparing.compare(runs, baseline=baseline, memory_limit_gib=memory_limit_gib)
    page = comparing.write_report(report, runs, output)
    logged = comparing.log_for_user(report, runs, output, experiment, tracking_uri, mlflow_store)
    if as_json == "-":
        print(page.with_name("report.json").read_text(), end="")
        return
    if as_json:
        Path(as_json).write_text(page.with_name("report.json").read_text())
    _console().print(comparing.terminal_table(report))
    _print_line(f"report: {page}")
    if logged:
        _print_line(logged)


@app.command(short_help="Serve the MLflow store of a rehearsal.")
def mlflow(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The store.", show_default=False)],
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="A free one if left out.")] = None,
) -> None:
    """Serve the MLflow store in FOLDER on this machine until Ctrl-C.

    Example: stratlab mlflow demo-results/mlflow --port 5000
    """
    from stratlab.rehearse.interruption import signals_raise
    from stratlab.tracking_server import serve_store

    with signals_raise():
        raise typer.Exit(serve_store(folder, port, _print_line))


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)  # a table must not be cut in a pipe


def _print_line(text: str) -> None:
    print(text, flush=True)


def _fail(sentence: str, code: int) -> NoReturn:
    print(f"error: {sentence}", file=sys.stderr)
    raise typer.Exit(code)


def main() -> None:
    """The console script. UserError is what the user typed; what nobody foresaw is a bug, with its traceback."""
    from stratlab.rehearse.interruption import Interrupted

    try:
        app()
    except UserError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        sys.exit(WRONG_INPUT)
    except Interrupted as stop:
        print(f"stopped by {stop}", file=sys.stderr)
        sys.exit(stop.code)
    except Exception as failure:
        from stratlab.cluster import ClusterError
        from stratlab.tracking_server import ServerFailed

        if isinstance(failure, OSError) and failure.errno in (errno.ENOSPC, errno.EDQUOT):
            print(f"error: storage full: {failure}; free space and try again", file=sys.stderr)
            sys.exit(STORAGE_FULL)
        if not isinstance(failure, ServerFailed | ClusterError):
            raise
        print(f"error: {failure}", file=sys.stderr)
        sys.exit(1)
