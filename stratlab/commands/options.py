"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stratlab.cluster.pod_template import check_certificates, check_pod_resources
from stratlab.tracking import check_tracking_uri

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
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="On the cluster; the context's if left out.")
]
Context = Annotated[
    str | None, typer.Option(help="Of the kubeconfig: which cluster; the current one if left out.")
]
Claim = Annotated[str, typer.Option(help="On the cluster: the results claim; as the runs say if left out.")]
Mount = Annotated[
    str, typer.Option(help="On the cluster: where runs see the claim; as they say if left out.")
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
    typer.Option("--image", help="On the cluster: image of the pod; that of the runs' analysis if left out."),
]
