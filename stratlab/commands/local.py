"""The verbs `rehearse`, `render` and `demo`, which work on this machine: their options and their output.

`demo` is a newcomer's first comparison: three strategies on real images.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratlab import UserError
from stratlab.commands import HelmSettings, HelmValues, RunName, print_json, say

if TYPE_CHECKING:
    from stratlab.rehearsal import RunEnd
    from stratlab.rehearsal_plan import RehearsalRequest


def rehearse(
    charts: Annotated[list[Path], typer.Argument(help="Chart folders or packages.", show_default=False)],
    settings: HelmSettings = None,
    values: HelmValues = None,
    name: RunName = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Pods of the job (run.nodes).")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes of each pod (run.processesPerNode).")
    ] = None,
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the run directories.")] = Path(
        "results/runs"
    ),
    mlflow: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="MLflow's store; default: `mlflow` next to RESULTS."),
    ] = None,
    analysis: Annotated[bool, typer.Option(help="Analyze the traces after each run.")] = True,
    replace: Annotated[bool, typer.Option("--replace", help="Remove a run of the same name first.")] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Continue after a run that failed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, at the end: a list of objects.")] = False,
) -> None:
    """Run strategy charts on this machine, one after the other: no cluster, no container.

    helm renders each chart; its commands, arguments and environment are started as processes, with the variables of
    the training operator. An MLflow server runs meanwhile. The analysis follows.

    Example: stratlab rehearse charts/ddp charts/fsdp --set run.config.epochs=2
    """
    from stratlab.rehearsal import describe_end, next_commands
    from stratlab.rehearsal_plan import RehearsalRequest

    request = RehearsalRequest(
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
        print_json([describe_end(end) for end in ends])
    else:
        for line in next_commands(ends, request.mlflow):
            print(line)
    raise typer.Exit(next((end.code for end in ends if end.code), 0))


def run_request(request: RehearsalRequest, *, on_stderr: bool = False) -> list[RunEnd]:
    """Run the charts with their progress on the terminal, without the verb's closing lines.

    Raises:
        typer.Exit: the trainer has rejected settings or data of a run, and printed the reason.
    """
    from rich.console import Console

    from stratlab.machine import signals_raise
    from stratlab.progress import Display
    from stratlab.rehearsal import rehearse as run_rehearsal
    from stratlab.trainer_program import Refused

    try:
        with Display(Console(stderr=on_stderr)) as display, signals_raise():
            return run_rehearsal(request, display)
    except Refused as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        raise typer.Exit(refusal.code) from None


class Starter(StrEnum):
    """The program that starts the run."""

    torchrun = "torchrun"
    slurm = "slurm"
    hostfile = "hostfile"
    docker = "docker"


def render(
    chart: Annotated[
        Path, typer.Argument(help="A strategy's chart: its folder or package.", show_default=False)
    ],
    starter: Annotated[
        Starter, typer.Option("--for", help="Program that starts the run.", show_default=False)
    ],
    settings: HelmSettings = None,
    values: HelmValues = None,
    name: RunName = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Machines (run.nodes).")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes of each machine (run.processesPerNode).")
    ] = None,
    results: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder of the run directories, the same on all machines."),
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
        int, typer.Option(min=1, max=100, help="For `--for slurm`: number of runs, as an array.")
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
    from stratlab.script import RenderRequest, build_script
    from stratlab.trainer_program import Refused

    request = RenderRequest(
        chart=chart,
        results=results.expanduser().resolve(),
        settings=settings or (),
        values=values or (),
        name=name,
        nodes=nodes,
        processes=processes,
        mlflow=mlflow,
        starter=starter.value,
        hostfile=hostfile,
        repeats=repeats,
    )
    try:
        script, said = build_script(request)
    except Refused as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        raise typer.Exit(refusal.code) from None
    for sentence in said:
        say(sentence)
    if output is None:
        print(script, end="")
        return
    aside = output.with_name(f".{output.name}.new")
    try:
        aside.write_text(script)
        aside.rename(output)
    except OSError as failure:
        with suppress(OSError):
            aside.unlink()
        raise UserError(f"--output {output}: {failure.strerror or failure} [SL-output-not-written]") from None


STRATEGIES = ("ddp", "fsdp", "zero2")
CONFIG = dict(
    comparison="demo", model="cnn", dataset="digits", image_size=16, epochs=10, global_batch_size=64,
    micro_batch_size=32, lr=0.003, lr_schedule="cosine", warmup_steps=20, profile_steps=24,
)  # fmt: skip
SETTINGS = ("run.processesPerNode=2", *(f"run.config.{name}={value}" for name, value in CONFIG.items()))
"""Settings of examples/digits.yaml, which is not part of a wheel."""


def demo(
    charts: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Holds the charts ddp, fsdp and zero2, or their packages.")
    ] = Path("charts"),
    results: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder of the runs, MLflow's store and the report.")
    ] = Path("demo-results"),
) -> None:
    """Compare ddp, fsdp and zero2 on real images, here and now: no GPU, no cluster, a few minutes.

    Needs helm, the trainer (its wheel, of `make dist`), and the charts: from the repository, or packages of them
    (helm pull). Runs of an earlier demo are replaced.

    Example: stratlab demo --results demo-results
    """
    from stratlab.commands.compare import compare
    from stratlab.machine import build_machine_env
    from stratlab.rehearsal_plan import RehearsalRequest
    from stratlab.trainer_program import TRAINER, explain_trainer

    if absence := explain_trainer(TRAINER[0], build_machine_env(os.environ)):
        told = f"the demo trains on this machine: {absence}"
        raise UserError(told)
    found = [find_chart(charts, name) for name in STRATEGIES]
    runs, mlflow = ((results / name).expanduser().resolve() for name in ("runs", "mlflow"))
    ends = run_request(RehearsalRequest(found, runs, mlflow, settings=SETTINGS, replace=True))
    if code := next((end.code for end in ends if end.code), 0):
        raise typer.Exit(code)
    compare([results / "runs" / "demo"], output=results, mlflow_store=results / "mlflow")


def find_chart(folder: Path, name: str) -> Path:
    """Return the chart `name` in `folder`: a folder, or the newest of its packages.

    Raises:
        UserError: there is neither.
    """
    if (folder / name / "Chart.yaml").is_file():
        return folder / name
    packages = sorted(folder.glob(f"{name}-[0-9]*.tgz"), key=lambda path: path.stat().st_mtime)
    if not packages:
        raise UserError(
            f"--charts {folder}: no chart {name} there; name the repository's folder charts, or one with the packages "
            "that `helm pull` brings [SL-demo-no-chart]"
        )
    return packages[-1]
