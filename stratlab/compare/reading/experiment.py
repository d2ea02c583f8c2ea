"""The runs of a comparison as MLflow holds them: an experiment whose runs carry their run directory."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from stratlab.compare.reading.kept_tuning import NOT_IN_MLFLOW
from stratlab.run_directory.record import RunRecord, read_run
from stratlab.tracking import redirect
from stratlab.tracking.server import ServerFailed
from stratlab.user_error import UserError

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

KIND_TAG = "stratlab.kind"
KIND = "comparison"
"""Tag and its value on the MLflow run that holds the report of a comparison, beside the runs of it."""

SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
DOWNLOADED = ".from_mlflow"  # in a folder that was downloaded: what lacks it is somebody's own
BULKY = ("_trace.json", ".log", ".gz", ".safetensors", ".pt")


def load_experiment(name: str, tracking_uri: str, into: Path) -> list[RunRecord]:
    """Downloads `run/*` and `analysis/report.json` of each run, and reads them as run directories.

    Args:
        name: of the experiment = the comparison.
        into: gets one folder per run; traces and logs are not downloaded. Those of an earlier download are replaced.

    Raises:
        UserError: there is no such experiment, it has no runs, the server names files outside of a run, or a folder
            would be replaced that was not downloaded.
        ServerFailed: the server does not answer, which may be another matter in a minute.
    """
    # a server that is away costs seconds, not the four minutes of the client's own default
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # it would cross the table
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # its thread changes os.environ
    for variable, value in redirect.REFUSED.items():
        os.environ.setdefault(variable, value)
    from mlflow.exceptions import MlflowException  # 3 s: only who asks for an experiment pays
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri)
    try:
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            known = ", ".join(sorted(e.name for e in client.search_experiments()))
            raise UserError(
                f"--experiment {name}: not at {tracking_uri}; there are: {known} [SL-experiment-absent]"
            )
        runs = [run for run in _runs_of(client, experiment.experiment_id) if not is_comparison(run)]
        if not runs:
            raise UserError(f"--experiment {name}: has no runs at {tracking_uri} [SL-experiment-empty]")
        folders = {run_id: into / name for run_id, name in _folder_names(runs).items()}
        for folder in folders.values():
            _check_free(folder)
        into.mkdir(parents=True, exist_ok=True)
        return sorted(
            (_fetch(client, run, folders[run.info.run_id], tracking_uri) for run in runs),
            key=lambda r: r.name,
        )
    except MlflowException as error:
        if not redirect.does_answer(tracking_uri):
            raise ServerFailed(
                f"--experiment {name}: no MLflow server answers at {tracking_uri} [SL-experiment-server-away]"
            ) from error
        reason = redirect.explain_failure(tracking_uri, error.message)
        raise UserError(
            f"--experiment {name}: MLflow at {tracking_uri} failed: {reason} [SL-experiment-server-failed]"
        ) from error


def is_comparison(run: Run) -> bool:
    """Whether an MLflow run holds the report of a comparison, and is no run of it."""
    return run.data.tags.get(KIND_TAG) == KIND


def _runs_of(client: MlflowClient, experiment_id: str) -> list[Run]:
    runs, token = [], None
    while True:
        page = client.search_runs([experiment_id], max_results=1000, page_token=token)
        runs += list(page)
        token = page.token
        if not token:
            return runs


def _folder_names(runs: list[Run]) -> dict[str, str]:
    """Run id -> folder: the run's name where it is unique and a plain file name, else the id."""
    names = [run.info.run_name for run in runs]
    return {
        run.info.run_id: name
        if SAFE_NAME.fullmatch(name or "") and names.count(name) == 1
        else run.info.run_id
        for run, name in zip(runs, names, strict=True)
    }


def _check_free(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not (folder / DOWNLOADED).is_file()):
        raise UserError(
            f"{folder}: is there, and was not downloaded from MLflow; choose another --output, its folder runs/ gets "
            "the runs of the experiment [SL-experiment-folder-taken]"
        )


def _fetch(client: MlflowClient, run: Run, folder: Path, tracking_uri: str) -> RunRecord:
    """The run in `folder`, whole or not at all; files of an earlier download do not mix with it."""
    run_id = run.info.run_id
    wanted = {
        path: PurePosixPath(path).relative_to("run")
        for path in _files_below(client, run_id, "run")
        if not path.endswith(BULKY)
    }
    reports = [path for path in _files_below(client, run_id, "analysis") if path == "analysis/report.json"]
    wanted |= {path: PurePosixPath(path) for path in reports}
    with tempfile.TemporaryDirectory(dir=folder.parent) as downloads:
        fresh = Path(downloads) / "fresh"
        fresh.mkdir()
        (fresh / DOWNLOADED).write_text(f"{run_id}\n")
        for path, name in wanted.items():
            target = fresh / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(client.download_artifacts(run_id, path, downloads), target)
        _check_free(folder)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    record = dataclasses.replace(
        read_run(folder, downloaded=True),
        mlflow_run_id=run_id,
        mlflow_experiment_id=run.info.experiment_id,
        tracking_uri=tracking_uri,
        tuning=NOT_IN_MLFLOW,
    )
    return (
        dataclasses.replace(record, ending="has no artifacts under run/, where its analysis puts them")
        if not wanted
        else record
    )


def _files_below(client: MlflowClient, run_id: str, folder: str) -> list[str]:
    """A server could name anything: whatever does not lie below `folder` is refused before a byte is fetched."""
    files: list[str] = []
    for entry in client.list_artifacts(run_id, folder):
        path, above = PurePosixPath(entry.path), PurePosixPath(folder)
        if above not in path.parents or ".." in path.parts or "\0" in entry.path:
            raise UserError(
                f"run {run_id}: refusing the artifact path {entry.path!r}, it is not below {folder}/ [SL-artifact-path]"
            )
        files += _files_below(client, run_id, entry.path) if entry.is_dir else [entry.path]
    return files
