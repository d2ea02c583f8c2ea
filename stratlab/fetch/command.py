"""The verb `stratlab fetch`: its options, and what it prints."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from stratlab.options import Claim, Context, LabImage, Mount, Namespace, PodResources
from stratlab.user_error import UserError

HEAVY = {"traces": ("traces",), "checkpoints": ("checkpoints",), "models": ("model", "best_model")}
SAY_EVERY_S = 5.0


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
            "--with", metavar="NAMES", help="What is heavy stays there unless named: " + ",".join(HEAVY)
        ),
    ] = "",
    replace: Annotated[bool, typer.Option("--replace", help="In place of what was fetched before.")] = False,
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

    A short-lived pod reads the volume. Nothing is half there: the folder appears when all of it has arrived.

    Example: stratlab fetch demo/ddp --namespace stratlab

    Example: stratlab fetch demo --with traces --output fetched --namespace stratlab
    """
    from stratlab.cluster.connection import connect
    from stratlab.cluster.place import find_place
    from stratlab.cluster.run_name import NAME
    from stratlab.fetch.folder_pod import read_folder
    from stratlab.fetch.unpacking import check_target, unpack
    from stratlab.machine.interruption import signals_raise

    if not re.fullmatch(f"{NAME}(/{NAME})?", run):
        raise UserError(
            f"{run}: give COMPARISON or COMPARISON/RUN, such as demo/ddp; stratlab list --on-cluster names them "
            "[SL-fetch-name]"
        )
    stays = {name: folders for name, folders in HEAVY.items() if name not in _read_names(also)}
    target = output / run
    check_target(target, replace)
    connection = connect(context=context, namespace=namespace, pod_resources=pod_resources)
    with signals_raise():
        place = find_place(
            connection,
            connection.namespace,
            run.split("/")[0],
            claim=claim,
            mount=mount,
            image=image,
            say=_say,
        )
        left_out = [folder for folders in stays.values() for folder in folders]
        pieces = read_folder(connection, connection.namespace, place, run, left_out, _say)
        fetched = unpack(_telling(pieces, _say), target, [*stays])
    pages = sorted(fetched.folder.rglob("report.html"))
    if as_json:
        told = {
            "folder": str(fetched.folder),
            "files": fetched.files,
            "size_bytes": fetched.size_bytes,
            "not_fetched": list(stays),
            "reports": [str(page) for page in pages],
        }
        print(json.dumps(told, indent=1))
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


def _telling(pieces: Iterable[bytes], say: Callable[[str], None]) -> Iterator[bytes]:
    """The pieces; every few seconds a word of how much has arrived."""
    arrived, told = 0, time.monotonic()
    for piece in pieces:
        arrived += len(piece)
        if time.monotonic() - told > SAY_EVERY_S:
            say(f"{arrived / 2**20:.1f} MiB have arrived")
            told = time.monotonic()
        yield piece


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
