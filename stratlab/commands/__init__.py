"""Arguments, options and functions that several commands share."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratlab.cluster.pod_template import check_certificates, check_pod_resources
from stratlab.tracking import check_tracking_uri

if TYPE_CHECKING:
    from rich.console import Console

    from stratlab.cluster.connection import Connection
    from stratlab.cluster.pod_template import PodRequest


PIPED = 160
"""Columns without a terminal."""
Release = Annotated[
    str, typer.Argument(metavar="RELEASE", help="Name given to helm install.", show_default=False)
]
RunDirectory = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", help="One run: RESULTS/COMPARISON/RUN.", show_default=False)
]
TrackingUri = Annotated[
    str,
    typer.Option(
        "--tracking-uri",
        envvar="MLFLOW_TRACKING_URI",
        callback=check_tracking_uri,
        help="The MLflow server.",
    ),
]
HelmSettings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for helm; may be repeated.")
]
HelmValues = Annotated[
    list[Path] | None, typer.Option("--values", "-f", metavar="FILE", help="As for helm; may be repeated.")
]
RunName = Annotated[str | None, typer.Option("--name", help="Name of the run; the chart's name if left out.")]
OnCluster = Annotated[bool, typer.Option("--on-cluster", help="On the results volume of a cluster.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="On the cluster; the context's if left out.")
]
Context = Annotated[str | None, typer.Option(help="Cluster of the kubeconfig; default: the current one.")]
Claim = Annotated[str, typer.Option(help="On the cluster: the results claim; default: the runs' own.")]
Mount = Annotated[
    str, typer.Option(help="On the cluster: the claim's folder in the pods; default: the runs' own.")
]
PodResources = Annotated[
    str,
    typer.Option(
        "--pod-resources",
        envvar="STRATLAB_POD_RESOURCES",
        metavar="NAME=AMOUNT,...",
        callback=check_pod_resources,
        help="On the cluster: of pods that stratlab starts, as limits.cpu=500m,requests.memory=64Mi.",
    ),
]
Certificates = Annotated[
    str,
    typer.Option(
        "--certificates",
        envvar="STRATLAB_CERTIFICATES",
        metavar="KIND/NAME/KEY",
        callback=check_certificates,
        help="On the cluster: of MLflow's authority, as run.certificates: configMap/NAME/ca.crt or secret/NAME/ca.crt.",
    ),
]
LabImage = Annotated[
    str,
    typer.Option(
        "--image", help="On the cluster: image of the pod; default: the image of the runs' analysis."
    ),
]


def say(sentence: object) -> None:
    """Print on standard error, apart from the answer."""
    print(sentence, file=sys.stderr, flush=True)


def open_console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, or as COLUMNS; without both, as in a pipe, PIPED columns."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")  # of an encoding without bars and lines, as ASCII
    return Console(width=None if stream.isatty() or "COLUMNS" in os.environ else PIPED, stderr=stderr)


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=1), flush=True)


def open_volume(
    comparison: str, namespace: str | None, context: str | None, pod_resources: str, **given: str
) -> tuple[Connection, PodRequest]:
    """Connect to a cluster and find a comparison's place on it.

    Args:
        given: options claim, mount, image, certificates; "" = left out.
    """
    from stratlab.cluster.connection import connect
    from stratlab.cluster.volume_pod import find_place

    connection = connect(context=context, namespace=namespace, pod_resources=pod_resources)
    return connection, find_place(connection, comparison, **given, say=say)
