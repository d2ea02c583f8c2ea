"""The verb `stratlab remove`: its options, and what it asks and prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratlab.options import Certificates, Claim, Context, LabImage, Mount, Namespace, PodResources
from stratlab.user_error import UserError

if TYPE_CHECKING:
    from stratlab.cluster.connection import Connection
    from stratlab.list.run_list import ListedRun


def remove(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN_DIR...",
            help="RESULTS/COMPARISON/RUN; on a cluster COMPARISON/RUN. With --older-than RESULTS, on a cluster none.",
            show_default=False,
        ),
    ] = None,
    older_than: Annotated[
        str,
        typer.Option(metavar="AGE", help="All runs that have recorded nothing for so long: 12h, 30d, 8w."),
    ] = "",
    with_mlflow: Annotated[
        bool, typer.Option("--with-mlflow", help="Delete their runs in MLflow too, first.")
    ] = False,
    on_cluster: Annotated[
        bool, typer.Option("--on-cluster", help="The runs lie on the results volume of a cluster.")
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
    pod_resources: PodResources = "",
    claim: Claim = "",
    mount: Mount = "",
    image: LabImage = "",
    certificates: Certificates = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: an object with removed.")] = False,
) -> None:
    """Remove the folders of runs for good: traces, checkpoints, metrics and report.

    What MLflow has stays, unless --with-mlflow. A run that has finished, or was started with other settings, keeps its
    name taken until then. --older-than leaves what is at work, or suspended.

    Example: stratlab remove results/runs/demo/ddp

    Example: stratlab remove --older-than 30d --on-cluster --namespace stratlab
    """
    asked = runs or []
    if older_than and len(asked) != (0 if on_cluster else 1):
        raise UserError(
            "--older-than with --on-cluster looks at the whole claim, leave RUN_DIR out [SL-older-than-claim]"
            if on_cluster
            else "--older-than needs one folder of results [SL-older-than-folder]: "
            "stratlab remove RESULTS --older-than 30d"
        )
    if not older_than and not asked:
        raise UserError("name a RUN_DIR, or the age of what may go: --older-than 30d [SL-remove-nothing]")
    if on_cluster:
        from stratlab.cluster.connection import connect

        connection = connect(context=context, namespace=namespace, pod_resources=pod_resources)
        given = {"claim": claim, "mount": mount, "image": image, "certificates": certificates}
        removed = _remove_there(connection, asked, older_than, with_mlflow, given, yes)
    else:
        removed = _remove_here(asked, older_than, with_mlflow, yes)
    if as_json:
        print(json.dumps({"removed": removed if older_than or len(asked) > 1 else removed[0]}))
    else:
        print("\n".join(f"{run}: removed" for run in removed) or f"no run is older than {older_than}")


def _remove_here(asked: Sequence[str], older_than: str, with_mlflow: bool, yes: bool) -> list[str]:
    from stratlab.remove.run_folder import find_run, remove_run

    if older_than:
        from stratlab.list.run_list import list_runs

        root = Path(asked[0])
        old = _pick(list_runs(root), older_than)
        nested = [root / run.comparison / run.run for run in old]
        asked = [str(path if path.is_dir() else root / path.name) for path in nested]
    folders = [find_run(Path(run)) for run in asked]
    if folders:
        _ask([str(folder) for folder in folders], yes)
    for folder in folders:
        if said := remove_run(folder, with_mlflow):
            _say(said)
    return list(asked)


def _remove_there(
    connection: Connection,
    asked: Sequence[str],
    older_than: str,
    with_mlflow: bool,
    given: dict[str, str],
    yes: bool,
) -> list[str]:
    from stratlab.cluster.place import find_place
    from stratlab.cluster.run_name import read_name
    from stratlab.machine.interruption import signals_raise
    from stratlab.remove.removal_pod import check_ended, remove_on_cluster

    names = [read_name(run) for run in asked]
    space = connection.namespace
    for comparison, name in names:
        check_ended(connection, space, comparison, name)
    place = find_place(connection, space, names[0][0] if names else "", **given, say=_say)
    with signals_raise():
        if older_than:
            from stratlab.list.list_pod import list_on_cluster

            old = _pick(list_on_cluster(connection, space, place, _say), older_than)
            names = [(run.comparison, run.run) for run in old]
        folders = ["/".join(name) for name in names]
        if folders:
            _ask([f"{run} on the claim {place.claim} of namespace {space}" for run in folders], yes)
            remove_on_cluster(connection, space, folders, with_mlflow, place, _say)
    return folders


def _pick(runs: Sequence[ListedRun], older_than: str) -> list[ListedRun]:
    from stratlab.remove.old_runs import parse_age, pick_old

    return pick_old(runs, parse_age(older_than), datetime.now(UTC))


def _ask(what: Sequence[str], yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"{', '.join(what)}: nobody can be asked here, give --yes to remove it [SL-remove-unasked]"
        )
    typer.confirm("remove " + "\n       ".join(what) + "?", abort=True)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
