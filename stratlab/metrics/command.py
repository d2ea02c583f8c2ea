"""The verbs `stratlab metrics replay` and `stratlab metrics serve`: their options, and nothing else."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from stratlab.options import Certificates, Claim, Context, Mount, Namespace, PodResources, TrackingUri
from stratlab.user_error import UserError

metrics = typer.Typer(help="Metrics of a run and MLflow.", no_args_is_help=True, rich_markup_mode="markdown")


@metrics.command(short_help="Send to MLflow what it does not have yet.")
def replay(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN_DIR", help="RESULTS/COMPARISON/RUN; on a cluster COMPARISON/RUN.", show_default=False
        ),
    ],
    tracking_uri: TrackingUri = "",
    on_cluster: Annotated[
        bool, typer.Option("--on-cluster", help="The run lies on the results volume of a cluster.")
    ] = False,
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
    """Send to MLflow what it does not have yet of a run whose server was away. Each point arrives once.

    Without --tracking-uri the server that the run had; on a cluster it is an address that pods reach. A run that has
    ended is closed there if it was left open.

    Example: stratlab metrics replay results/runs/demo/ddp --tracking-uri http://127.0.0.1:5000

    Example: stratlab metrics replay demo/ddp --on-cluster --namespace stratlab
    """
    from stratlab.metrics.replay import replay_here

    if on_cluster:
        given = {"claim": claim, "mount": mount, "certificates": certificates}
        said = _replay_there(run, tracking_uri, namespace, context, pod_resources, given, image)
    else:
        said = replay_here(Path(run), tracking_uri, os.environ)
    print(json.dumps({"run": run, "said": said}) if as_json else said, flush=True)


@metrics.command(short_help="Serve the newest numbers of runs to Prometheus.")
def serve(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="The folder of results.", show_default=False)
    ],
    port: Annotated[int, typer.Option(min=1, max=65535)] = 9464,
    host: Annotated[str, typer.Option(help="Who may ask: 0.0.0.0 for everybody.")] = "127.0.0.1",
    newest: Annotated[int, typer.Option(min=1, help="So many runs, those that were written last.")] = 50,
) -> None:
    """Serve the newest numbers of the runs in RESULTS to Prometheus, at /metrics, until it is stopped.

    Read from the files whenever Prometheus asks; runs know nothing of it. docs/monitoring.md lists the metrics.

    Example: stratlab metrics serve results/runs --port 9464
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ModuleNotFoundError:
        raise UserError(
            "Prometheus' client is not installed here [SL-no-prometheus]: pip install 'stratlab[prometheus]'"
        ) from None
    from stratlab.machine.interruption import signals_raise
    from stratlab.metrics.run_gauges import RunGauges
    from stratlab.run_directory.given_folder import check_folder

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


def _replay_there(
    run: str,
    tracking_uri: str,
    namespace: str | None,
    context: str | None,
    pod_resources: str,
    given: dict[str, str],
    image: str,
) -> str:
    from stratlab.cluster.connection import connect
    from stratlab.cluster.place import find_place
    from stratlab.cluster.run_name import read_name
    from stratlab.cluster.workloads import find_workload
    from stratlab.machine.interruption import signals_raise
    from stratlab.metrics.replay import replay_on_cluster

    def say(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    comparison, name = read_name(run)
    connection = connect(context=context, namespace=namespace, pod_resources=pod_resources)
    if not tracking_uri and (workload := find_workload(connection, connection.namespace, name)):
        tracking_uri = workload.facts.tracking_uri
    place = find_place(connection, connection.namespace, comparison, **given, say=say)
    with signals_raise():
        return replay_on_cluster(
            connection, connection.namespace, run, tracking_uri, place=place, image=image, progress=say
        )
