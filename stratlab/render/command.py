"""The verb `stratlab render`: its options, and nothing else."""

from __future__ import annotations

import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stratlab.options import HelmSettings, HelmValues, RunName


class Starter(StrEnum):
    """Who starts the run."""

    torchrun = "torchrun"
    slurm = "slurm"
    hostfile = "hostfile"
    docker = "docker"


def render(
    chart: Annotated[
        Path, typer.Argument(help="A strategy's chart: its folder or package.", show_default=False)
    ],
    starter: Annotated[Starter, typer.Option("--for", help="Who starts the run.", show_default=False)],
    settings: HelmSettings = None,
    values: HelmValues = None,
    name: RunName = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Machines (run.nodes).")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes of each machine (run.processesPerNode).")
    ] = None,
    results: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Where the run directories go, the same on all machines."),
    ] = Path("results/runs"),
    mlflow: Annotated[
        str,
        typer.Option(
            metavar="URL", help="MLflow's server; without it the metrics stay in the run directory."
        ),
    ] = "",
    hostfile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="For `--for hostfile`: machines, a line each, `gpu-node-01 slots=8`."
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, max=100, help="For `--for slurm`: so many runs, as an array.")
    ] = 1,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write it there instead of printing it."),
    ] = None,
) -> None:
    """Print a script that starts a chart's run without Kubernetes: same settings, program and run directory.

    The settings are checked first, as on a cluster.

    Example: stratlab render charts/fsdp --for slurm -f examples/digits.yaml --nodes 2 --processes 1 -o fsdp.sbatch
    """
    from stratlab.render.script import Wanted, build_script
    from stratlab.render.start import Request
    from stratlab.rendering.checking import Refused
    from stratlab.user_error import UserError

    request = Request(
        chart=chart,
        results=results.expanduser().resolve(),
        settings=settings or (),
        values=values or (),
        name=name,
        nodes=nodes,
        processes=processes,
        mlflow=mlflow,
    )
    try:
        script, said = build_script(request, Wanted(starter.value, hostfile, repeats))
    except Refused as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        raise typer.Exit(refusal.code) from None
    for sentence in said:
        print(sentence, file=sys.stderr)
    if output is None:
        print(script, end="")
    else:
        aside = output.with_name(f".{output.name}.new")
        try:
            aside.write_text(script)
            aside.rename(output)
        except OSError as failure:
            with suppress(OSError):
                aside.unlink()
            raise UserError(
                f"--output {output}: {failure.strerror or failure} [SL-output-not-written]"
            ) from None
