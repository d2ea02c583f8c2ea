"""The verb `stratlab watch`: its options, and nothing else."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import Annotated

import typer

Release = Annotated[
    str, typer.Argument(metavar="RELEASE", help="Name given to helm install.", show_default=False)
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="The context's if left out.")]
Context = Annotated[str, typer.Option(help="Of the kubeconfig; the current one if left out.")]


def watch(
    release: Release,
    namespace: Namespace = "",
    context: Context = "",
    analysis: Annotated[bool, typer.Option(help="Stay until the analysis has ended too.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON, at the end: an object with what became of the run.")
    ] = False,
) -> None:
    """Watch a run on the cluster until it ends: pods, step, loss, speed, time left, what goes wrong.

    A live table on a terminal, plain lines elsewhere. The exit code is the run's outcome: 0 it succeeded, else the
    trainer's own code, or 1. Ctrl-C leaves (130), and the run goes on.

    Example: stratlab watch ddp-1 --namespace stratlab
    """
    from rich.console import Console

    from stratlab.cluster.connection import connect
    from stratlab.machine.interruption import Interrupted, signals_raise
    from stratlab.watch.appearance import await_workload
    from stratlab.watch.farewell import build_ending, build_farewell, describe_left
    from stratlab.watch.lines import Lines
    from stratlab.watch.picture import Picture
    from stratlab.watch.session import Display, watch_run

    def say(text: str) -> None:
        print(text, file=sys.stderr if as_json else sys.stdout, flush=True)

    connection = connect(context=context or None, namespace=namespace or None)
    console = Console(stderr=as_json)
    picture: Picture | None = None
    with ExitStack() as stack:
        stack.enter_context(signals_raise())
        try:
            picture = Picture(await_workload(connection, connection.namespace, release, say))
            display: Display = Lines(say)
            if console.is_terminal and not console.is_dumb_terminal:
                from stratlab.watch.run_table import LiveTable

                display = stack.enter_context(LiveTable(console))
            code = watch_run(connection, picture, display, analysis=analysis)
        except Interrupted as stop:
            stack.close()
            say(f"left; {describe_left(picture)}: stratlab watch {release} -n {connection.namespace}")
            raise typer.Exit(stop.code) from None
    for line in build_farewell(picture):
        say(line)
    if as_json:
        print(json.dumps(build_ending(picture, code), indent=1), flush=True)
    raise typer.Exit(code)
