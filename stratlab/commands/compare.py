"""The verb `stratlab compare`: its options and its output.

`--json` without a value prints the report, as for every other command; with a FILE it also writes the report there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

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
    TrackingUri,
    open_console,
)

NAME, PRINTED = "--json", "-"


class JsonOrFile(TyperCommand):
    """A command that takes `--json`, `--json FILE` and `--json -`, which is the first one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, fill_in(args))


def fill_in(words: list[str]) -> list[str]:
    """Return the words with a value for `--json` if none follows it."""
    filled: list[str] = []
    for word in words:
        if filled[-1:] == [NAME] and word.startswith("-") and word != PRINTED:
            filled.append(PRINTED)
        filled.append(word)
    return [*filled, PRINTED] if filled[-1:] == [NAME] else filled


def compare(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DIR...",
            help="A comparison: RESULTS/COMPARISON; on a cluster its name. Several are compared as one.",
            show_default=False,
        ),
    ] = None,
    experiment: Annotated[str | None, typer.Option(help="An MLflow experiment instead of a folder.")] = None,
    tracking_uri: TrackingUri = "",
    mlflow_store: Annotated[
        Path | None,
        typer.Option("--mlflow", metavar="FOLDER", help="The report goes into this store of a rehearsal."),
    ] = None,
    as_json: Annotated[
        str | None,
        typer.Option("--json", metavar="[FILE]", help="As JSON: only report.json; with FILE also there."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the report; default: DIR/report for a single DIR."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Explain the others against this run; the fastest if left out."),
    ] = None,
    memory_limit_gib: Annotated[
        float | None,
        typer.Option(metavar="GIB", min=0, help="Memory of one device: name the fastest run that fits."),
    ] = None,
    vary: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Settings that the runs are meant to differ in: lr,optimizer rank what was learnt, "
            "micro_batch_size,compile how fast one training is.",
        ),
    ] = "",
    on_cluster: OnCluster = False,
    namespace: Namespace = None,
    context: Context = None,
    pod_resources: PodResources = "",
    claim: Claim = "",
    mount: Mount = "",
    image: LabImage = "",
    certificates: Certificates = "",
    tuning: Annotated[
        str, typer.Option(metavar="JSON", help="How a sweep has tuned; kept as DIR/tuning.json.", hidden=True)
    ] = "",
    varied: Annotated[str, typer.Option(hidden=True)] = "",
    keep_varied: Annotated[
        bool,
        typer.Option("--keep-varied", help="--vary is a sweep's: kept as DIR/varied.json.", hidden=True),
    ] = False,
) -> None:
    """Compare the runs in DIR, or in an MLflow experiment, explain their differences, and write a report.

    The runs of several DIR are compared as one: runs on 2, 4 and 8 processes become a scaling series.

    The report is also added to MLflow, to the experiment of the runs: at --tracking-uri, or at the runs' own server.

    With --on-cluster a pod compares the runs in their place, and the report is copied to --output.

    Example: stratlab compare results/runs/demo

    Example: stratlab compare results/runs/gpus-2 results/runs/gpus-4 --output scaling

    Example: stratlab compare demo --on-cluster --namespace stratlab
    """
    folders = folders or []
    if varied:
        print(
            "--varied: is called --vary now; the next version does not read the old name [SL-option-renamed]",
            file=sys.stderr,
        )
        vary = vary or varied
    if as_json and as_json != PRINTED and not experiment and (not folders or Path(as_json).is_dir()):
        folders, as_json = [Path(as_json), *folders], PRINTED  # `compare --json DIR`
    if (not folders) == (experiment is None):
        raise UserError("give either DIR or --experiment NAME [SL-compare-source]")
    if len(folders) > 1 and (on_cluster or tuning or keep_varied or not output):
        raise UserError(
            "several DIR: expected --output FOLDER too, and no --on-cluster [SL-compare-several-options]"
        )
    if as_json and as_json != PRINTED:
        from stratlab.compare.report_files import check_file

        check_file(Path(as_json))
    if on_cluster and experiment:
        raise UserError(
            "--on-cluster compares a folder of the volume; leave --experiment out [SL-on-cluster-experiment]"
        )
    if on_cluster:
        asked = {"baseline": baseline, "memory_limit_gib": memory_limit_gib, "vary": vary or None}
        if tracking_uri != os.environ.get(
            "MLFLOW_TRACKING_URI", ""
        ):  # which this machine reaches, pods may not
            asked["tracking_uri"] = tracking_uri
        place = {"claim": claim, "mount": mount, "image": image, "certificates": certificates}
        output = output or Path(f"{folders[0]}-report")
        report = _compare_there(str(folders[0]), namespace, context, pod_resources, place, output, asked)
        _show(report, output / "report.html", as_json)
        return
    if experiment and not tracking_uri:
        raise UserError(
            "--experiment needs --tracking-uri URI or MLFLOW_TRACKING_URI [SL-experiment-no-server]"
        )
    from stratlab.compare import run_sources as sources
    from stratlab.compare.comparison import compare as compare_runs
    from stratlab.compare.publishing import log_for_user
    from stratlab.compare.report_files import write_report
    from stratlab.compare.variants import parse_varied

    folder = folders[0] if len(folders) == 1 else None
    output = output or (folder / "report" if folder else Path(f"{experiment}-report"))
    if experiment:
        runs = sources.load_experiment(experiment, tracking_uri, output / "runs")
    else:
        runs = sources.load_folders(folders)
    if folder and tuning:
        sources.keep_tuning(folder, sources.parse_tuning(tuning))
    names = parse_varied(vary) or sources.read_varied_of(folders)
    report = compare_runs(
        runs,
        baseline=baseline,
        memory_limit_gib=memory_limit_gib,
        tuning=sources.read_tuning(folder) if folder else None,
        varied=names,
    )
    if folder and keep_varied:
        sources.keep_varied(folder, names)
    page = write_report(report, runs, output)
    logged = ""
    if len(folders) < 2:  # several comparisons have no experiment in common
        logged = log_for_user(report, runs, output, experiment, tracking_uri, mlflow_store)
    _show(report, page, as_json)
    if logged and as_json != PRINTED:
        print(logged, flush=True)


def _compare_there(
    comparison: str,
    namespace: str | None,
    context: str | None,
    pod_resources: str,
    given: Mapping[str, str],
    output: Path,
    asked: Mapping[str, str | float | None],
) -> dict[str, Any]:
    """Compare in a pod that mounts the results.

    Args:
        given: options claim, mount and image; "" = left out.
        asked: options of the comparison itself, by their name in Python; None = left out.
    """
    from stratlab.cluster.connection import connect
    from stratlab.cluster.volume_pod import find_place
    from stratlab.compare.publishing import build_options, compare_on_cluster
    from stratlab.machine import signals_raise

    def say(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    connection = connect(context=context, namespace=namespace, pod_resources=pod_resources)
    with signals_raise():
        place = find_place(connection, comparison, **given, say=say)
        return compare_on_cluster(
            connection,
            connection.namespace,
            comparison,
            claim=place.claim,
            mount=place.mount,
            image=place.image,
            certificates=place.certificates,
            output=output,
            options=build_options(asked),
            progress=say,
        )


def _show(report: Mapping[str, Any], page: Path, as_json: str | None) -> None:
    """Print report.json for `--json` without a file; otherwise a summary for one screen, and the page's path."""
    text = page.with_name("report.json").read_text()
    if as_json == PRINTED:
        print(text, end="")
        return
    from stratlab.compare.terminal_view import build_screen

    if as_json:
        Path(as_json).write_text(text)
    console = open_console()
    console.print(build_screen(report, console.width))
    print(f"\nreport: {page}", flush=True)
