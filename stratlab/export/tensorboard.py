"""TensorBoard's files, written by the trainer's own program: the names of the numbers are its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stratlab.machine.environment import build_machine_env
from stratlab.rendering.checking import TRAINER
from stratlab.rendering.installation import explain_trainer
from stratlab.user_error import UserError


def write_event_files(runs: Sequence[Path], output: Path | None) -> int:
    """The exit code of the program, which says on standard output and error what it has done.

    Raises:
        UserError: no trainer is installed here.
    """
    env = build_machine_env(os.environ)
    if absence := explain_trainer(TRAINER[0], env):
        raise UserError(
            f"the trainer writes event files, and is not to be had: {absence} [SL-export-no-trainer]"
        )
    command = [*TRAINER[:-1], f"{TRAINER[-1]}.program", "tensorboard", *map(str, runs)]
    return subprocess.run([*command, *(["--output", str(output)] if output else [])], env=env).returncode
