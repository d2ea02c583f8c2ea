"""The verbs `list`, `fetch` and `remove`: their options, their questions and their output."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratlab import UserError
from stratlab.commands import (
    Certificates,
    Claim,
    Context,
    LabImage,
    Mount,
    Namespace,
    OnCluster,
    PodResources,
    open_console,
    open_volume,
    print_json,
    say,
)

if TYPE_CHECKING:
    from stratlab.run_folders import ListedRun

HEAVY = {"traces": ("traces",), "checkpoints": ("checkpoints",), "models": ("model", "best_model")}
SAY_EVERY_S = 5.0


def list_runs(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="A folder of results, or of one comparison.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: a list of objects.")] = False,
    on_cluster: OnCluster = False,
    namespace: Namespace = None,
    context: Context = None,
    pod_resources: PodResources = "",
    claim: Claim = "",
    mount: Mount = "",
    image: LabImage = "",
) -> None:
    """List the runs: strategy, progress, outcome. The newest is last.

    Example: stratlab list results

    Example: stratlab list --on-cluster --namespace stratlab
    """
    from stratlab import run_folders

    if on_cluster == (folder is not None):
        raise UserError("give either DIR or --on-cluster [SL-list-source]")
    if folder:
        runs = run_folders.list_runs(folder)
    else:
        from stratlab.machine import signals_raise
        from stratlab.results_pods import list_on_cluster

        given = {"claim": claim, "mount": mount, "image": image}
        with signals_raise():
            runs = list_on_cluster(*open_volume("", namespace, context, pod_resources, **given), say)
    if as_json:
        print_json([dataclasses.asdict(run) for run in runs])
        return
    if not runs:
        print("no run there yet")
        return
    from stratlab.progress import build_lines

    answers = run_folders.list_answers(runs)
    for name in run_folders.name_comparisons(runs)[-1:]:
        if folder:
            place = str(folder if folder.absolute().name == name else folder / name)
        else:
            place = f"{name} --on-cluster" + (f" --namespace {namespace}" if namespace else "")
        answers.append(("Compare", f"stratlab compare {place}"))
    console = open_console()
    console.print(run_folders.build_table(runs))
    console.print()
    console.print(build_lines(answers))


def fetch(
    run: Annotated[
        str,
        typer.Argument(
            metavar="COMPARISON[/RUN]", help="A run, or all runs of a comparison.", show_default=False
        ),
    ],
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="It becomes FOLDER/COMPARISON/RUN.")] = Path(
        "results"
    ),
    also: Annotated[
        str,
        typer.Option(
            "--with", metavar="NAMES", help="Large parts stay there unless named: " + ",".join(HEAVY)
        ),
    ] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace an earlier download.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    pod_resources: PodResources = "",
    claim: Claim = "",
    mount: Mount = "",
    image: LabImage = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON: an object with folder, files and reports.")
    ] = False,
) -> None:
    """Fetch a run's folder from a cluster's volume: settings, metrics, logs, report, analysis.

    A short-lived pod reads the volume. The folder appears when all of it has arrived.

    Example: stratlab fetch demo/ddp --namespace stratlab

    Example: stratlab fetch demo --with traces --output fetched --namespace stratlab
    """
    from stratlab.cluster.volume_pod import NAME, read_folder
    from stratlab.machine import signals_raise
    from stratlab.run_folders import check_target, unpack

    if not re.fullmatch(f"{NAME}(/{NAME})?", run):
        raise UserError(
            f"{run}: give COMPARISON or COMPARISON/RUN, such as demo/ddp; stratlab list --on-cluster names them "
            "[SL-fetch-name]"
        )
    stays = {name: folders for name, folders in HEAVY.items() if name not in _read_names(also)}
    target = output / run
    check_target(target, replace)
    given = {"claim": claim, "mount": mount, "image": image}
    with signals_raise():
        connection, place = open_volume(run.split("/")[0], namespace, context, pod_resources, **given)
        left_out = [folder for folders in stays.values() for folder in folders]
        pieces = read_folder(connection, place, place.find_folder(run), left_out, say)
        fetched = unpack(_tell_size(pieces), target, [*stays])
    pages = sorted(fetched.folder.rglob("report.html"))
    if as_json:
        found = dataclasses.asdict(fetched) | {"folder": str(fetched.folder)}
        print_json(found | {"not_fetched": list(stays), "reports": [str(page) for page in pages]})
        return
    print(f"{fetched.folder}: {fetched.files} files, {fetched.size_bytes / 2**20:.1f} MiB")
    if stays:
        print(f"not fetched: {', '.join(stays)} (--with {','.join(stays)})")
    for page in pages:
        print(f"report: {page}")


def _read_names(text: str) -> set[str]:
    names = {name.strip() for name in text.split(",") if name.strip()}
    if wrong := sorted(names - HEAVY.keys()):
        raise UserError(f"--with {','.join(wrong)}: allowed are {', '.join(HEAVY)} [SL-fetch-with]")
    return names


def _tell_size(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces, and print every few seconds how much has arrived."""
    arrived, told = 0, time.monotonic()
    for piece in pieces:
        arrived += len(piece)
        if time.monotonic() - told > SAY_EVERY_S:
            say(f"{arrived / 2**20:.1f} MiB have arrived")
            told = time.monotonic()
        yield piece


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
    on_cluster: OnCluster = False,
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
    """Remove the folders of runs permanently: traces, checkpoints, metrics and report.

    MLflow keeps its data, unless --with-mlflow is set. The name of a finished run, or of one with other settings,
    stays taken until then. --older-than skips running and suspended runs.

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
        raise UserError("name a RUN_DIR, or the age of runs to remove: --older-than 30d [SL-remove-nothing]")
    if on_cluster:
        cluster = {"namespace": namespace, "context": context, "pod_resources": pod_resources}
        given = {"claim": claim, "mount": mount, "image": image, "certificates": certificates}
        removed = _remove_there(asked, older_than, with_mlflow, yes, **cluster, **given)
    else:
        removed = _remove_here(asked, older_than, with_mlflow, yes)
    if as_json:
        print(json.dumps({"removed": removed if older_than or len(asked) > 1 else removed[0]}))
    else:
        print("\n".join(f"{run}: removed" for run in removed) or f"no run is older than {older_than}")


def _remove_here(asked: Sequence[str], older_than: str, with_mlflow: bool, yes: bool) -> list[str]:
    from stratlab.run_folders import find_run, list_runs, remove_run

    if older_than:
        root = Path(asked[0])
        old = _pick(list_runs(root), older_than)
        nested = [root / run.comparison / run.run for run in old]
        asked = [str(path if path.is_dir() else root / path.name) for path in nested]
    folders = [find_run(Path(run)) for run in asked]
    _ask([str(folder) for folder in folders], yes)
    for folder in folders:
        if said := remove_run(folder, with_mlflow):
            say(said)
    return list(asked)


def _remove_there(
    asked: Sequence[str], older_than: str, with_mlflow: bool, yes: bool, **cluster: Any
) -> list[str]:
    """Remove the runs in a pod. `cluster`: as `open_volume` takes it."""
    from stratlab.cluster.volume_pod import read_name
    from stratlab.machine import signals_raise
    from stratlab.results_pods import check_ended, list_on_cluster, remove_on_cluster

    names = [read_name(run) for run in asked]
    connection, place = open_volume(names[0][0] if names else "", **cluster)
    for name in names:
        check_ended(connection, *name)
    with signals_raise():
        if older_than:
            old = _pick(list_on_cluster(connection, place, say), older_than)
            names = [(run.comparison, run.run) for run in old]
        folders = ["/".join(name) for name in names]
        where = f"on the claim {place.claim} of namespace {connection.namespace}"
        _ask([f"{run} {where}" for run in folders], yes)
        if folders:
            remove_on_cluster(connection, place, folders, with_mlflow, say)
    return folders


def _pick(runs: Sequence[ListedRun], older_than: str) -> list[ListedRun]:
    from stratlab.results_pods import parse_age, pick_old

    return pick_old(runs, parse_age(older_than), datetime.now(UTC))


def _ask(what: Sequence[str], yes: bool) -> None:
    if yes or not what:
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"{', '.join(what)}: no terminal to confirm it here; give --yes to remove it [SL-remove-unasked]"
        )
    typer.confirm("remove " + "\n       ".join(what) + "?", abort=True)
