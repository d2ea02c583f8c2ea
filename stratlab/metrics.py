"""Send a run's metrics to MLflow later, or write them for TensorBoard, with the trainer's own program.

While a run trains, the trainer's launcher sends metrics; `replay` sends those that MLflow lacks, here or in a pod.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.pod_template import PodRequest
from stratlab.cluster.volume_pod import read_file, run_on_volume
from stratlab.machine import build_machine_env
from stratlab.run_directory.files import is_run
from stratlab.run_directory.places import check_folder
from stratlab.trainer_program import TRAINER, explain_trainer
from stratlab.user_error import NothingThere, UserError
from stratlab_spec.exit_codes import BAD_CONFIG


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
