"""The verbs `metrics replay`, `metrics serve`, `export tensorboard`, `export wandb`, `mlflow`, `verify`."""

from __future__ import annotations

import dataclasses
import json
import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from stratlab import UserError
from stratlab.commands import (
    Certificates,
    Claim,
    Context,
    Mount,
    Namespace,
    OnCluster,
    PodResources,
    RunDirectory,
    TrackingUri,
    open_volume,
    print_json,
    say,
)

metrics = typer.Typer(help="Metrics of a run and MLflow.", no_args_is_help=True, rich_markup_mode="markdown")


@metrics.command(short_help="Send missing metrics to MLflow.")
def replay(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN_DIR", help="RESULTS/COMPARISON/RUN; on a cluster COMPARISON/RUN.", show_default=False
        ),
    ],
    tracking_uri: TrackingUri = "",
    on_cluster: OnCluster = False,
    namespace: Namespace = None,
    context: Context = None,
    pod_resources: PodResources = "",
    claim: Claim = "",
    mount: Mount = "",
    certificates: Certificates = "",
    image: Annotated[
        str, typer.Option(help="With --on-cluster: image of the trainer; the run's own if left out.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: an object with run and said.")] = False,
) -> None:
    """Send the missing points of a run to MLflow, after its server was unreachable. Each point arrives once.

    Without --tracking-uri the run's own server is used; on a cluster pods must reach the address. A run that has
    ended is closed there if it was left open.

    Example: stratlab metrics replay results/runs/demo/ddp --tracking-uri http://127.0.0.1:5000

    Example: stratlab metrics replay demo/ddp --on-cluster --namespace stratlab
    """
    from stratlab.cluster.volume_pod import read_name
    from stratlab.cluster.workloads import find_workload
    from stratlab.machine import signals_raise
    from stratlab.metrics import replay_here, replay_on_cluster

    if on_cluster:
        comparison, name = read_name(run)
        given = {"claim": claim, "mount": mount, "certificates": certificates}
        connection, place = open_volume(comparison, namespace, context, pod_resources, **given)
        if not tracking_uri and (workload := find_workload(connection, name)):
            tracking_uri = workload.facts.tracking_uri
        with signals_raise():
            said = replay_on_cluster(connection, place, run, tracking_uri, image, say)
    else:
        said = replay_here(Path(run), tracking_uri, os.environ)
    print(json.dumps({"run": run, "said": said}) if as_json else said, flush=True)


@metrics.command(short_help="Serve the newest numbers of runs to Prometheus.")
def serve(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="The folder of results.", show_default=False)
    ],
    port: Annotated[int, typer.Option(min=1, max=65535)] = 9464,
    host: Annotated[str, typer.Option(help="Address to listen on: 0.0.0.0 for all machines.")] = "127.0.0.1",
    newest: Annotated[int, typer.Option(min=1, help="Number of runs, the newest first.")] = 50,
) -> None:
    """Serve the newest numbers of the runs in RESULTS to Prometheus, at /metrics, until it is stopped.

    Each request of Prometheus reads the files; runs are not involved. docs/monitoring.md lists the metrics.

    Example: stratlab metrics serve results/runs --port 9464
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ModuleNotFoundError:
        raise UserError(
            "Prometheus' client is not installed here [SL-no-prometheus]: pip install 'stratlab[prometheus]'"
        ) from None
    from stratlab.machine import signals_raise
    from stratlab.metrics_exporter import RunGauges
    from stratlab.run_directory.files import check_folder

    check_folder(results, "the folder of results")
    registry = CollectorRegistry()
    registry.register(RunGauges(results, newest))
    with signals_raise():
        try:
            server, thread = start_http_server(port, addr=host, registry=registry)
        except OSError as failure:
            raise UserError(
                f"--host {host}, --port {port}: {failure.strerror} [SL-metrics-address]"
            ) from None
        print(f"serving {results} at http://{host}:{port}/metrics", flush=True)
        try:
            thread.join()
        finally:
            server.shutdown()


export = typer.Typer(help="Files for other programs.", no_args_is_help=True, rich_markup_mode="markdown")


@export.callback()
def choose() -> None:
    """Write files for other programs."""


@export.command(short_help="Write TensorBoard's event files.")
def tensorboard(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...",
            help="Run directories, or a comparison with all its runs.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="FOLDER/COMPARISON/RUN; `tensorboard` of each run if left out."),
    ] = None,
) -> None:
    """Write TensorBoard's event files from metrics.jsonl: every number of it, under MLflow's names.

    The trainer's own program does it. An earlier export is replaced.

    Example: stratlab export tensorboard results/runs/demo --output boards
    """
    from stratlab.metrics import write_event_files

    raise typer.Exit(write_event_files(runs, output))


@export.command(short_help="Copy runs to Weights & Biases.")
def wandb(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...",
            help="Run directories, or a comparison with all its runs.",
            show_default=False,
        ),
    ],
    project: Annotated[str, typer.Option(help="The comparison's name if left out.")] = "",
    entity: Annotated[str, typer.Option(help="User or team; wandb's default if left out.")] = "",
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="For wandb's files.")] = Path("wandb-export"),
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not send; `wandb sync` does it later.")
    ] = False,
) -> None:
    """Copy every number of metrics.jsonl, settings and results to Weights & Biases, under MLflow's names.

    Log in first with `wandb login`. A second copy of the same run continues the first.

    Example: stratlab export wandb results/runs/demo --offline
    """
    from stratlab.metrics import export_to_wandb, list_exported

    for sentence in export_to_wandb(list_exported(runs), project, entity, output, offline=offline):
        print(sentence, flush=True)


def mlflow(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The store.", show_default=False)],
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="A free one if left out.")] = None,
) -> None:
    """Serve the MLflow store in FOLDER on this machine until Ctrl-C.

    Example: stratlab mlflow demo-results/mlflow --port 5000
    """
    from stratlab.machine import signals_raise
    from stratlab.tracking_server import serve_store

    with signals_raise():
        raise typer.Exit(serve_store(folder, port, partial(print, flush=True)))


def verify(
    run_dir: RunDirectory,
    tracking_uri: TrackingUri = "",
    report: Annotated[bool, typer.Option(help="Whether an analysis belongs to the run.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: a list of checks, at the end.")] = False,
) -> None:
    """Check that the run in RUN_DIR is whole: files, ranks, traces, report, and the same in MLflow.

    One line per check. Without --tracking-uri the server is the one in mlflow.json; a rehearsal's server has ended
    with the rehearsal, so that its check is skipped. Exit code 1: a check failed.

    Example: stratlab verify results/runs/demo/ddp --tracking-uri http://localhost:5000
    """
    from stratlab.verify import verify_run

    lines = []
    for line in verify_run(run_dir, tracking_uri or None, with_report=report):
        lines.append(line)
        if not as_json:
            print(line, flush=True)
    if as_json:
        print_json([dataclasses.asdict(line) for line in lines])
    if any(line.state == "failed" for line in lines):
        raise typer.Exit(1)
