"""The runs of a comparison as MLflow holds them: an experiment whose runs carry their run directory."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from stratlab import tracking_redirect
from stratlab.compare.record import RunRecord, read_run

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
BULKY = ("_trace.json", ".log", ".gz", ".safetensors", ".pt")


def load_experiment(name: str, tracking_uri: str, into: Path) -> list[RunRecord]:
    """Downloads `run/*` and `analysis/report.json` of each run, and reads them as run directories.

    Args:
        name: of the experiment = the comparison.
        into: gets one folder per run; traces and logs are not downloaded.

    Raises:
        ValueError: there is no such experiment, it has no runs, or the server does not answer.
    """
    # a server that is away costs seconds, not the four minutes of the client's own default
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # its thread changes os.environ
    for variable, value in tracking_redirect.REFUSED.items():
        os.environ.setdefault(variable, value)
    from mlflow.exceptions import MlflowException  # 3 s: only who asks for an experiment pays
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri)
    try:
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            known = ", ".join(sorted(e.name for e in client.search_experiments()))
            raise ValueError(f"--experiment {name}: not at {tracking_uri}; there are: {known}")
        runs = _runs_of(client, experiment.experiment_id)
        if not runs:
            raise ValueError(f"--experiment {name}: has no runs at {tracking_uri}")
        into.mkdir(parents=True, exist_ok=True)
        names = _folder_names(runs)
        return sorted(
            (_fetch(client, run, into / names[run.info.run_id]) for run in runs), key=lambda r: r.name
        )
    except MlflowException as error:
        reason = tracking_redirect.explain_failure(tracking_uri, error.message)
        raise ValueError(f"--experiment {name}: MLflow at {tracking_uri} failed: {reason}") from error


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


def _fetch(client: MlflowClient, run: Run, folder: Path) -> RunRecord:
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier comparison: files must not mix
    folder.mkdir()
    run_id = run.info.run_id
    wanted = [path for path in _files_below(client, run_id, "run") if not path.endswith(BULKY)]
    wanted += [path for path in _files_below(client, run_id, "analysis") if path == "analysis/report.json"]
    with tempfile.TemporaryDirectory(dir=folder.parent) as downloads:
        for path in wanted:
            target = folder / path.removeprefix("run/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(client.download_artifacts(run_id, path, downloads), target)
    record = dataclasses.replace(read_run(folder, downloaded=True), mlflow_run_id=run_id)
    return dataclasses.replace(record, ending="has no artifacts under run/") if not wanted else record


def _files_below(client: MlflowClient, run_id: str, folder: str) -> list[str]:
    files: list[str] = []
    for entry in client.list_artifacts(run_id, folder):
        if ".." in PurePosixPath(entry.path).parts:  # a server could name anything
            raise ValueError(f"run {run_id}: refusing the artifact path {entry.path!r}")
        files += _files_below(client, run_id, entry.path) if entry.is_dir else [entry.path]
    return files
