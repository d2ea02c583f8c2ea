"""Send a run's metrics to MLflow later, write them for TensorBoard, or copy runs to Weights & Biases.

While a run trains, the trainer's launcher sends metrics; `replay` sends those that MLflow lacks, here or in a pod, and
`write_events` writes event files: both with the trainer's own program. The copy at Weights & Biases, by wandb's own
package, has every number of metrics.jsonl under MLflow's names, for users whose other runs are there. Offline, wandb
writes a folder that `wandb sync` sends later.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratlab import NothingThere, UserError
from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.pod_template import PodRequest
from stratlab.cluster.volume_pod import read_file, run_on_volume
from stratlab.compare.run_sources import load_runs
from stratlab.machine import build_machine_env
from stratlab.run_directory.files import check_folder, is_number, is_run
from stratlab.run_directory.record import RunRecord, read_run
from stratlab.trainer_program import TRAINER, explain_trainer
from stratlab_spec.exit_codes import BAD_CONFIG
from stratlab_spec.run_directory import NOT_POINTS, is_metrics, name_metric


class ReplayFailed(ClusterError):
    """Report a failed replay. Unsent metrics stay in the run directory."""


def replay_here(folder: Path, uri: str, environ: Mapping[str, str], program: Sequence[str] = TRAINER) -> str:
    """Return the trainer's message after it has sent everything.

    Raises:
        NothingThere: the folder is not a run.
        UserError: it is a file, or no trainer is installed here.
        ReplayFailed: the server is still unreachable, or refused.
    """
    check_folder(folder, "the folder of a run")
    if not is_run(folder):
        raise NothingThere(
            f"{folder}: not a run: no file in it was written by the trainer [SL-metrics-no-run]"
        )
    if absence := explain_trainer(program[0], environ):
        raise UserError(
            f"the trainer sends metrics, but it is not available: {absence} [SL-replay-no-trainer]"
        )
    command = [*program[:-1], f"{program[-1]}.program", "replay", *build_arguments(str(folder), uri)]
    done = subprocess.run(command, env=dict(environ), capture_output=True, text=True)
    return _read_answer(done.returncode, done.stdout, done.stderr)


def replay_on_cluster(
    connection: Connection,
    place: PodRequest,
    run: str,
    uri: str,
    image: str,
    progress: Callable[[str], None],
) -> str:
    """Replay in a pod that mounts the results.

    Args:
        run: COMPARISON/RUN.
        image: of the trainer; "" = the image of the run, from its config.json.

    Raises:
        UserError: the run does not exist, or its image is unknown.
        ReplayFailed, ClusterError: the replay failed.
    """
    folder = place.find_folder(run)
    if not image:
        config = json.loads(b"".join(read_file(connection, place, f"{folder}/config.json", progress)))
        image = str(config.get("config", {}).get("image", ""))
    if not image:
        raise UserError(
            f"{folder}: does not record its trainer image; set one with --image [SL-replay-no-image]"
        )
    request = replace(place, image=image, read_only=False, component="comparison")
    command = ["python", "-m", "trainer.program", "replay", *build_arguments(folder, uri)]
    finished = run_on_volume(connection, request, command, progress)
    return _read_answer(finished.exit_code, finished.text, finished.text or finished.termination)


def build_arguments(folder: str, uri: str) -> list[str]:
    """Return the arguments of `python -m trainer.program replay`."""
    return [folder, *([f"--tracking-uri={uri}"] if uri else [])]


def _read_answer(code: int, said: str, errors: str) -> str:
    words = errors.strip().removeprefix("error: ") or f"exit code {code} [SL-replay-failed]"
    if code == BAD_CONFIG:
        raise UserError(words)
    if code:
        raise ReplayFailed(words)
    return said.strip()


def write_event_files(runs: Sequence[Path], output: Path | None) -> int:
    """Run the trainer's program and return its exit code; it reports on standard output and error.

    Raises:
        UserError: no trainer is installed here.
    """
    env = build_machine_env(os.environ)
    if absence := explain_trainer(TRAINER[0], env):
        raise UserError(
            f"the trainer writes event files, but it is not available: {absence} [SL-export-no-trainer]"
        )
    command = [*TRAINER[:-1], f"{TRAINER[-1]}.program", "tensorboard", *map(str, runs)]
    return subprocess.run([*command, *(["--output", str(output)] if output else [])], env=env).returncode


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
