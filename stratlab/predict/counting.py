"""The trainer, where it is installed, counts what no file answers; what it has counted is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stratlab.predict.operations_file import OperationsFile, read_operations_file
from stratlab.predict.question import Question
from stratlab.rendering.installation import explain_trainer


class NotCounted(Exception):
    """The trainer is not there, or refuses. Its words."""


def find_cache() -> Path:
    """The folder of what was counted here: $XDG_CACHE_HOME/stratlab/operations."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratlab" / "operations"


def count_operations(question: Question, cache: Path) -> OperationsFile:
    """Counts for the settings of `question`, which takes from half a minute on, and keeps the file in `cache`.

    Raises:
        NotCounted: there is no trainer here, or these settings cannot be counted.
    """
    cache.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAINER_")}
    env = kept | {f"TRAINER_{name.upper()}": value for name, value in question.settings.items()}
    if absent := explain_trainer(sys.executable, env):
        raise NotCounted(absent)
    part = cache / f".{question.name}-{os.getpid()}.part"
    command = [sys.executable, "-m", "trainer.count", "--ranks", str(question.ranks)]
    command += ["--per-node", str(question.per_node), "--operations", str(part)]
    print(f"{question.name}: no file answers, so the trainer counts", file=sys.stderr, flush=True)
    try:
        with subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stderr is not None
            said = []
            for line in running.stderr:
                said.append(line.strip())
                print(f"  {line.rstrip()}", file=sys.stderr, flush=True)
        if running.returncode:
            words = [line for line in said if "TRAINER_" in line or "Error" in line] or said[-1:]
            raise NotCounted("; ".join(words) or f"the trainer ended with {running.returncode}")
        file = read_operations_file(part)
        place = cache / f"{file.model.replace('/', '_')}-{file.strategy}-{file.key}.json"
        part.replace(place)
        return read_operations_file(place)
    finally:
        part.unlink(missing_ok=True)
