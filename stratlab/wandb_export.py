"""Copy runs to Weights & Biases with wandb's own package: every number of metrics.jsonl, under MLflow's names.

The live path of metrics is MLflow. This copy is for users whose other runs are at Weights & Biases. Offline, wandb
writes a folder that `wandb sync` sends later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stratlab.compare.run_sources import load_runs
from stratlab.run_directory.files import is_number
from stratlab.run_directory.record import RunRecord, read_run
from stratlab.user_error import UserError
from stratlab_spec.mlflow_run import NOT_POINTS, name_metric
from stratlab_spec.run_directory import is_metrics


def list_exported(folders: Sequence[Path]) -> list[RunRecord]:
    """Return the runs of `folders`: run directories, or comparisons with all their runs.

    Raises:
        UserError: a folder holds no run.
    """
    runs: list[RunRecord] = []
    for folder in folders:
        one = read_run(folder) if folder.is_dir() else None
        runs += [one] if one and one.status != "not a run" else load_runs(folder)
    return [run for run in runs if run.status != "not a run"]


def build_points(metrics: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """Return step -> MLflow's name of a number -> the number; a later attempt replaces repeated steps."""
    points: dict[int, dict[str, float]] = {}
    for line in metrics:
        if not is_metrics(line):
            continue
        named = {
            name_metric(name, line.get("kind")): float(value)
            for name, value in line.items()
            if name not in NOT_POINTS and is_number(value) and not isinstance(value, bool)
        }
        points.setdefault(line["step"], {}).update(named)
    return dict(sorted(points.items()))


def build_id(run: RunRecord) -> str:
    """Return the run's id at Weights & Biases, the same for the same start: a second copy continues the first."""
    start = str((run.attempts or [{}])[0].get("t", ""))
    return hashlib.sha256(f"{run.folder.parent.name}/{run.name}/{start}".encode()).hexdigest()[:16]


def export_to_wandb(
    runs: Sequence[RunRecord], project: str, entity: str, folder: Path, *, offline: bool
) -> Iterator[str]:
    """Copy `runs`; yield one sentence after each.

    Args:
        project: "" = the name of the comparison.
        entity: the user or team; "" = wandb's default.
        folder: for wandb's files.

    Raises:
        UserError: wandb is not installed, or refuses a run.
    """
    try:
        import wandb
    except ModuleNotFoundError:
        raise UserError("wandb is not installed here: pip install 'stratlab[wandb]' [SL-no-wandb]") from None
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for run in runs:
            points = build_points(run.metrics)
            try:
                copy = wandb.init(
                    project=project or run.folder.parent.name,
                    entity=entity or None,
                    name=run.name,
                    id=build_id(run),
                    group=run.strategy,
                    config={**run.settings, "resolved": run.resolved},
                    dir=str(folder),
                    mode="offline" if offline else "online",
                    resume="allow" if not offline else None,
                    reinit="finish_previous",
                    settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
                )
                for step, values in points.items():
                    copy.log(values, step=step)
                copy.summary.update({name_metric(n): v for n, v in run.summary.items() if is_number(v)})
                copy.finish()
            except (wandb.Error, OSError) as failure:
                raise UserError(f"{run.folder}: wandb: {failure} [SL-wandb-failed]") from failure
            numbers = sum(map(len, points.values()))
            place = (
                f"in {folder}; send it with: wandb sync {copy.dir.removesuffix('/files')}"
                if offline
                else copy.url
            )
            yield f"{run.name}: {numbers} numbers of {len(points)} steps, {place}"
    finally:
        wandb.teardown()  # its service writes the rest of the files before it ends
