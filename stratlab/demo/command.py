"""The verb `stratlab demo`: three strategies compared on real images, on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from stratlab.user_error import UserError

STRATEGIES = ("ddp", "fsdp", "zero2")
SETTINGS = (
    "run.processesPerNode=2",
    "run.config.comparison=demo",
    "run.config.model=cnn",
    "run.config.dataset=digits",
    "run.config.image_size=16",
    "run.config.epochs=10",
    "run.config.global_batch_size=64",
    "run.config.micro_batch_size=32",
    "run.config.lr=0.003",
    "run.config.lr_schedule=cosine",
    "run.config.warmup_steps=20",
    "run.config.profile_steps=24",
)
"""Those of examples/digits.yaml, which is in no wheel."""


def demo(
    charts: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Holds the charts ddp, fsdp and zero2, or their packages.")
    ] = Path("charts"),
    results: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where runs, MLflow's store and the report go.")
    ] = Path("demo-results"),
) -> None:
    """Compare ddp, fsdp and zero2 on real images, here and now: no GPU, no cluster, a few minutes.

    Needs helm and the trainer (its wheel, of `make dist`), and the charts: those of the repository, or packages of them
    (helm pull). Runs of an earlier demo are replaced.

    Example: stratlab demo --results demo-results
    """
    from stratlab.compare.command import compare
    from stratlab.machine.environment import build_machine_env
    from stratlab.rehearse.command import run_request
    from stratlab.rehearse.planned_run import Request
    from stratlab.rendering.checking import TRAINER
    from stratlab.rendering.installation import explain_trainer

    if absence := explain_trainer(TRAINER[0], build_machine_env(os.environ)):
        told = f"the demo trains on this machine: {absence}"
        raise UserError(told)
    found = [find_chart(charts, name) for name in STRATEGIES]
    places = {name: (results / name).expanduser().resolve() for name in ("runs", "mlflow")}
    ends = run_request(
        Request(
            charts=found, results=places["runs"], mlflow=places["mlflow"], settings=SETTINGS, replace=True
        )
    )
    if code := next((end.code for end in ends if end.code), 0):
        raise typer.Exit(code)
    compare([results / "runs" / "demo"], output=results, mlflow_store=results / "mlflow")


def find_chart(folder: Path, name: str) -> Path:
    """The chart `name` in `folder`: a folder, or the newest of its packages.

    Raises:
        UserError: there is neither.
    """
    if (folder / name / "Chart.yaml").is_file():
        return folder / name
    packages = sorted(folder.glob(f"{name}-[0-9]*.tgz"), key=lambda path: path.stat().st_mtime)
    if not packages:
        raise UserError(
            f"--charts {folder}: no chart {name} there; name the repository's folder charts, or one with the packages "
            "that `helm pull` brings [SL-demo-no-chart]"
        )
    return packages[-1]
