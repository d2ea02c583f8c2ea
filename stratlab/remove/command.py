"""The verb `stratlab remove`: its options, and nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from stratlab.options import Claim, Context, LabImage, Mount, Namespace, PodResources
from stratlab.user_error import UserError


def remove(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN_DIR", help="RESULTS/COMPARISON/RUN; on a cluster COMPARISON/RUN.", show_default=False
        ),
    ],
    on_cluster: Annotated[
        bool, typer.Option("--on-cluster", help="The run lies on the results volume of a cluster.")
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
    pod_resources: PodResources = "",
    claim: Claim = "",
    mount: Mount = "",
    image: LabImage = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: an object with removed.")] = False,
) -> None:
    """Remove the folder of a run for good: traces, checkpoints, metrics and report. What MLflow has stays.

    A run that has finished, or was started with other settings, keeps its name taken until then.

    Example: stratlab remove results/runs/demo/ddp

    Example: stratlab remove demo/ddp --on-cluster --namespace stratlab
    """
    if on_cluster:
        _remove_there(
            run, namespace, context, pod_resources, {"claim": claim, "mount": mount, "image": image}, yes
        )
    else:
        from stratlab.remove.run_folder import find_run, remove_run

        folder = find_run(Path(run))
        _ask(str(folder), yes)
        remove_run(folder)
    print(json.dumps({"removed": run}) if as_json else f"{run}: removed", flush=True)


def _remove_there(
    run: str, namespace: str | None, context: str | None, pod_resources: str, given: dict[str, str], yes: bool
) -> None:
    from stratlab.cluster.connection import connect
    from stratlab.cluster.place import find_place
    from stratlab.cluster.run_name import read_name
    from stratlab.machine.interruption import signals_raise
    from stratlab.remove.removal_pod import check_ended, remove_on_cluster

    def say(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    comparison, name = read_name(run)
    connection = connect(context=context, namespace=namespace, pod_resources=pod_resources)
    check_ended(connection, connection.namespace, comparison, name)
    place = find_place(connection, connection.namespace, comparison, **given, say=say)
    _ask(f"{run} on the claim {place.claim} of namespace {connection.namespace}", yes)
    with signals_raise():
        remove_on_cluster(connection, connection.namespace, comparison, name, place, say)


def _ask(what: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(f"{what}: nobody can be asked here, give --yes to remove it")
    typer.confirm(f"remove {what}?", abort=True)
