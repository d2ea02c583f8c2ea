"""The verb `stratlab export tensorboard`: its options, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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

    The trainer's own program does it. What was there of an earlier export is replaced.

    Example: stratlab export tensorboard results/runs/demo --output boards
    """
    from stratlab.export.tensorboard import write_event_files

    raise typer.Exit(write_event_files(runs, output))
