"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stratlab.tracking.address import check_tracking_uri

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
