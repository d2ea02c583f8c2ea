"""The verb `stratlab rehearse`: its options, and nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratlab.options import HelmSettings, HelmValues, RunName

if TYPE_CHECKING:
    from stratlab.rehearse.planned_run import Request
    from stratlab.rehearse.summary import RunEnd


def rehearse(
    charts: Annotated[list[Path], typer.Argument(help="Chart folders or packages.", show_default=False)],
    settings: HelmSettings = None,
    values: HelmValues = None,
    name: RunName = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Pods of the job (run.nodes).")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes of each pod (run.processesPerNode).")
    ] = None,
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the run directories go.")] = Path(
        "results/runs"
    ),
    mlflow: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="MLflow's store; `mlflow` beside RESULTS if left out."),
    ] = None,
    analysis: Annotated[bool, typer.Option(help="Analyze the traces after each run.")] = True,
    replace: Annotated[bool, typer.Option("--replace", help="Remove a run of the same name first.")] = False,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on after a run that failed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, at the end: a list of objects.")] = False,
) -> None:
    """Run strategy charts on this machine, one after the other: no cluster, no container.

    Each chart is rendered by helm; its commands, arguments and environment are started as processes, with
    what the training operator would inject. An MLflow server runs beside them. The analysis follows.

    Example: stratlab rehearse charts/ddp charts/fsdp --set run.config.epochs=2
    """
    from stratlab.rehearse.planned_run import Request
    from stratlab.rehearse.summary import describe_end, next_commands

    request = Request(
        charts=charts,
        results=results.expanduser().resolve(),
        mlflow=(mlflow or results.parent / "mlflow").expanduser().resolve(),
        settings=settings or (),
        values=values or (),
        name=name,
        nodes=nodes,
        processes=processes,
        analysis=analysis,
        replace=replace,
        keep_going=keep_going,
    )
    ends = run_request(request, on_stderr=as_json)
    if as_json:
        print(json.dumps([describe_end(end) for end in ends], indent=1))
    else:
        for line in next_commands(ends, request.mlflow):
            print(line)
    raise typer.Exit(next((end.code for end in ends if end.code), 0))


def run_request(request: Request, *, on_stderr: bool = False) -> list[RunEnd]:
    """The runs, with their progress on the terminal, and without the last words of the verb.

    Raises:
        typer.Exit: the trainer refuses settings or data of a run, and has said so.
    """
    from rich.console import Console

    from stratlab.machine.interruption import signals_raise
    from stratlab.progress.display import Display
    from stratlab.rehearse.rehearsal import rehearse as run_rehearsal
    from stratlab.rendering.checking import Refused

    try:
        with Display(Console(stderr=on_stderr)) as display, signals_raise():
            return run_rehearsal(request, display)
    except Refused as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        raise typer.Exit(refusal.code) from None
