"""Find the runs of a comparison, and a sweep's records about them.

load_runs           from the folder of a comparison on the results volume; load_comparisons: from several.
load_experiment     from an MLflow experiment; its runs carry their run directory.
read_tuning         a sweep's record of the tuning; apply_tuning: the runs that have it.
read_varied         the settings in which the runs differ on purpose.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from stratlab import NothingThere, UserError
from stratlab import tracking as redirect
from stratlab.compare.placement import ComparedRun
from stratlab.machine import name_program
from stratlab.run_directory.files import FOREIGN, MARKS, check_folder, is_run
from stratlab.run_directory.record import read_run
from stratlab.tracking_server import ServerFailed
from stratlab.wording import format_fact
from stratlab_spec.run_directory import write_json

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient


TUNING_FILE = "tuning.json"
TUNED = "tuned"
NOT_IN_MLFLOW = f"not known: {TUNING_FILE} lies beside the runs on the results volume, not in MLflow"
PARTS = ("metric", "searches", "steps", "repeats", "tuning")


def read_tuning(folder: Path) -> dict[str, Any] | None:
    """Return the record in the folder of a comparison (its fields: stratlab/sweep/tuning_loop.py), or None.

    Raises:
        UserError: there is a file of this name that is something else.
    """
    file = folder / TUNING_FILE
    if not file.is_file():
        return None
    try:
        return parse_tuning(file.read_text())
    except (OSError, ValueError) as failure:
        raise UserError(
            f"{file}: not the record of a tuning ({failure}); move it away [SL-tuning-file]"
        ) from failure


def parse_tuning(text: str) -> dict[str, Any]:
    """Return the record out of JSON.

    Raises:
        ValueError: it is something else.
    """
    content = json.loads(text)
    missing = [name for name in PARTS if not isinstance(content, dict) or name not in content]
    if missing:
        raise ValueError(f"{', '.join(missing)} is missing")
    return dict(content)


def keep_tuning(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the record next to the runs, whole or not at all."""
    write_json(folder / TUNING_FILE, record)


def apply_tuning(runs: Sequence[ComparedRun], record: Mapping[str, Any] | None) -> list[ComparedRun]:
    """Return the runs with `tuning`: "tuned", or why it is not."""
    by_run = {name: each for each in (record or {}).get("searches", []) for name in each["runs"]}
    return [replace(run, tuning=_judge(run, by_run[run.name])) if run.name in by_run else run for run in runs]


def _judge(run: ComparedRun, search: Mapping[str, Any]) -> str:
    """Return why a run is not the tuned one: its knobs differ from the choice, or it has a rejected value."""
    if search["why_not"]:
        return f"not tuned: {search['why_not']}"
    settings, chosen = run.settings, search["chosen"]
    other = [
        f"{name} is {format_fact(settings.get(name))}, not {format_fact(value)}"
        for name, value in chosen.items()
        if str(settings.get(name)) != str(value)
    ]
    tried = {(name, str(value)) for each in search["tried"] for name, value in each["knobs"].items()}
    turned_down = dict.fromkeys(
        name for each in search["tried"] for name in each["knobs"] if name not in chosen
    )
    other += [
        f"{name} is {format_fact(settings[name])}, which was tried and not chosen"
        for name in turned_down
        if (name, str(settings.get(name))) in tried
    ]
    return f"not as tuned: {', '.join(other)}" if other else TUNED


def load_runs(folder: Path) -> list[ComparedRun]:
    """Read every folder below a comparison, by name. The record of an incomplete folder states the problem.

    Raises:
        NothingThere: `folder` is absent, or without any run.
        UserError: it is not a comparison: a file, a single run, or a folder of comparisons.
    """
    check_folder(folder, "the folder of a comparison, <results>/<comparison>")
    if (folder / "config.json").is_file() or (folder / FOREIGN).is_file():
        raise UserError(
            f"{folder}: this is one run; give the folder of its comparison, {folder.parent} [SL-compare-one-run]"
        )
    below = sorted(path for path in folder.iterdir() if path.is_dir() and not _is_ours(path))
    runs = [ComparedRun(**vars(read_run(path))) for path in below]
    if all(run.status == "not a run" for run in runs):
        if inside := find_comparisons(folder):
            commands = [f"{name_program()} compare {shlex.quote(str(path))}" for path in inside]
            raise UserError(
                f"{folder}: holds several comparisons; compare one [SL-compare-several]:\n  "
                + "\n  ".join(commands)
            )
        found = ", ".join(path.name for path in below) or "nothing"
        raise NothingThere(
            f"{folder}: no run in it; expected folders with one of {', '.join((*MARKS, FOREIGN))}, found {found} "
            "[SL-compare-no-run]"
        )
    return runs


def load_comparisons(folders: Sequence[Path]) -> list[ComparedRun]:
    """Read the runs of several comparisons as one comparison, each with the tuning of its own sweep.

    A name that several comparisons have gets the folder's name as a prefix, and further folders' if needed.

    Raises:
        NothingThere, UserError: as `load_runs`, or a folder is given twice.
    """
    places = [folder.resolve() for folder in folders]
    if len(set(places)) < len(places):
        raise UserError(f"{', '.join(map(str, folders))}: a folder is repeated [SL-compare-twice]")
    depth = next(
        depth
        for depth in range(1, max(len(place.parts) for place in places) + 1)
        if len({place.parts[-depth:] for place in places}) == len(places)
    )
    found = [
        ("/".join(place.parts[-depth:]), run)
        for folder, place in zip(folders, places, strict=True)
        for run in apply_tuning(load_runs(folder), read_tuning(folder))
    ]
    counts = Counter(run.name for _, run in found)
    return [replace(run, name=f"{above}/{run.name}") if counts[run.name] > 1 else run for above, run in found]


def load_folders(folders: Sequence[Path]) -> list[ComparedRun]:
    """Return the runs of one comparison, or of several."""
    return load_runs(folders[0]) if len(folders) == 1 else load_comparisons(folders)


def find_comparisons(folder: Path) -> list[Path]:
    """Return folders with runs in them, one or two levels below: of a folder of results, and of the one around it."""
    below = [*folder.glob("*/*/"), *folder.glob("*/*/*/")]
    return sorted({path.parent for path in below if is_run(path)})


def _is_ours(path: Path) -> bool:
    """Return whether it is the report of an earlier comparison, or a hidden folder."""
    if path.name.startswith("."):
        return True
    return all((path / name).is_file() for name in ("report.json", "comparison.csv")) and not is_run(path)


KIND_TAG = "stratlab.kind"
KIND = "comparison"
"""Tag and its value on the MLflow run that holds the report of a comparison, in the runs' experiment."""

SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
DOWNLOADED = ".from_mlflow"  # marks a downloaded folder: a folder without it is a user's own
BULKY = ("_trace.json", ".log", ".gz", ".safetensors", ".pt")


def load_experiment(name: str, tracking_uri: str, into: Path) -> list[ComparedRun]:
    """Download `run/*` and `analysis/report.json` of each run, and read them as run directories.

    Args:
        name: of the experiment = the comparison.
        into: gets one folder per run; traces and logs are not downloaded. Earlier downloads are replaced.

    Raises:
        UserError: there is no such experiment, it has no runs, the server names files outside of a run, or a folder
            would be replaced that was not downloaded.
        ServerFailed: the server does not answer; a later attempt may succeed.
    """
    # an unreachable server takes some seconds, not the four minutes of the client's own default
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # it would cross the table
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # its thread changes os.environ
    for variable, value in redirect.REFUSED.items():
        os.environ.setdefault(variable, value)
    from mlflow.exceptions import MlflowException  # 3 s: only for comparing an experiment
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri)
    try:
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            known = ", ".join(sorted(e.name for e in client.search_experiments()))
            raise UserError(
                f"--experiment {name}: not at {tracking_uri}; there are: {known} [SL-experiment-absent]"
            )
        runs = [run for run in list_runs(client, experiment.experiment_id) if not is_comparison(run)]
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
    """Return whether an MLflow run holds the report of a comparison, instead of a run."""
    return run.data.tags.get(KIND_TAG) == KIND


def list_runs(client: MlflowClient, experiment_id: str) -> list[Run]:
    """Return all of an experiment, its comparison too."""
    page = client.search_runs([experiment_id], max_results=1000)
    runs = list(page)
    while page.token:
        page = client.search_runs([experiment_id], max_results=1000, page_token=page.token)
        runs += page
    return runs


def _folder_names(runs: list[Run]) -> dict[str, str]:
    """Return run id -> folder: the run's name if it is unique and a plain file name, else the id."""
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
            f"{folder}: exists, and was not downloaded from MLflow; choose another --output, its folder runs/ gets "
            "the runs of the experiment [SL-experiment-folder-taken]"
        )


def _fetch(client: MlflowClient, run: Run, folder: Path, tracking_uri: str) -> ComparedRun:
    """Return the run in `folder`, whole or not at all; files of an earlier download do not mix with it."""
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
    known: dict[str, Any] = {"mlflow_run_id": run_id, "mlflow_experiment_id": run.info.experiment_id}
    if not wanted:
        known["ending"] = "has no artifacts under run/, where its analysis puts them"
    record = ComparedRun(**vars(read_run(folder, downloaded=True)), tuning=NOT_IN_MLFLOW)
    return replace(record, tracking_uri=tracking_uri, **known)


def _files_below(client: MlflowClient, run_id: str, folder: str) -> list[str]:
    """List the files below `folder`, and reject other paths before fetching: a server could name anything."""
    files: list[str] = []
    for entry in client.list_artifacts(run_id, folder):
        path, above = PurePosixPath(entry.path), PurePosixPath(folder)
        if above not in path.parents or ".." in path.parts or "\0" in entry.path:
            raise UserError(
                f"run {run_id}: refusing the artifact path {entry.path!r}, it is not below {folder}/ [SL-artifact-path]"
            )
        files += _files_below(client, run_id, entry.path) if entry.is_dir else [entry.path]
    return files


VARIED_FILE = "varied.json"


def read_varied(folder: Path) -> tuple[str, ...]:
    """Return the names in the folder of a comparison; empty if a sweep has not written them."""
    file = folder / VARIED_FILE
    if not file.is_file():
        return ()
    try:
        names = json.loads(file.read_text())["varied"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("`varied` is not a list of names")
    except (OSError, ValueError, KeyError, TypeError) as failure:
        raise UserError(
            f"{file}: not the varied settings of a sweep ({failure}); move it away [SL-varied-file]"
        ) from failure
    return tuple(names)


def read_varied_of(folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the names that any of the folders has."""
    return tuple(dict.fromkeys(name for folder in folders for name in read_varied(folder)))


def keep_varied(folder: Path, varied: Sequence[str]) -> None:
    """Write the names next to the runs, whole or not at all."""
    write_json(folder / VARIED_FILE, {"varied": list(varied)})
