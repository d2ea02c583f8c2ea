"""The verb `stratlab mlflow`: its options, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def mlflow(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The store.", show_default=False)],
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="A free one if left out.")] = None,
) -> None:
    """Serve the MLflow store in FOLDER on this machine until Ctrl-C.

    Example: stratlab mlflow demo-results/mlflow --port 5000
    """
    from stratlab.machine.interruption import signals_raise
    from stratlab.tracking.server import serve_store

    with signals_raise():
        raise typer.Exit(serve_store(folder, port, _say))


def _say(text: str) -> None:
    print(text, flush=True)
