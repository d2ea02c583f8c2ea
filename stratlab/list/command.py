"""The verb `stratlab list`: its options, and what it prints."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratlab.options import Claim, Context, LabImage, Mount, Namespace, PodResources
from stratlab.user_error import UserError

if TYPE_CHECKING:
    from stratlab.list.run_list import ListedRun


def list_runs(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="A folder of results, or of one comparison.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: a list of objects.")] = False,
    on_cluster: Annotated[
        bool, typer.Option("--on-cluster", help="The runs on the results volume of a cluster.")
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
    pod_resources: PodResources = "",
    claim: Claim = "",
    mount: Mount = "",
    image: LabImage = "",
) -> None:
    """List the runs there are: strategy, how far they came, how they ended. The newest stands last.

    Example: stratlab list results

    Example: stratlab list --on-cluster --namespace stratlab
    """
    from stratlab.list import run_list

    if on_cluster == (folder is not None):
        raise UserError("give either DIR or --on-cluster [SL-list-source]")
    if folder:
        runs = run_list.list_runs(folder)
    else:
        runs = _list_there(
            namespace, context, pod_resources, {"claim": claim, "mount": mount, "image": image}
        )
    if as_json:
        print(json.dumps([dataclasses.asdict(run) for run in runs], indent=1))
        return
    if not runs:
        print("no run there yet")
        return
    from rich.console import Console

    from stratlab.list.list_table import build_table

    console = Console(width=None if sys.stdout.isatty() else 200)  # a table must not be cut in a pipe
    console.print(build_table(runs))


def _list_there(
    namespace: str | None, context: str | None, pod_resources: str, given: dict[str, str]
) -> list[ListedRun]:
    from stratlab.cluster.connection import connect
    from stratlab.cluster.place import find_place
    from stratlab.list.list_pod import list_on_cluster
    from stratlab.machine.interruption import signals_raise

    def say(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    connection = connect(context=context, namespace=namespace, pod_resources=pod_resources)
    with signals_raise():
        place = find_place(connection, connection.namespace, "", **given, say=say)
        return list_on_cluster(connection, connection.namespace, place, say)
