"""The trainer, where it is installed, says what it refuses, and counts what no file answers; counts are kept."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stratlab.predict.count_command import fill_question
from stratlab.predict.operations_file import OperationsFile, read_operations_file
from stratlab.predict.question import Question
from stratlab.rendering.checking import VARIABLE, ask_trainer, name_settings
from stratlab.rendering.installation import explain_trainer


class NotCounted(Exception):
    """The trainer is not there, or refuses. Its words."""


class CountRefused(NotCounted):
    """These settings cannot be counted: to count them by hand would end likewise."""


REFUSED = 2
"""The trainer's exit code for wrong settings."""


def find_cache() -> Path:
    """The folder of what was counted here: $XDG_CACHE_HOME/stratlab/operations."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratlab" / "operations"


def list_refusals(questions: Sequence[Question]) -> dict[int, str]:
    """Place of a question -> why the trainer would start no such run, whatever its data; of none where it is not
    installed."""
    runs, kept = {}, _drop_settings(os.environ)
    for place, question in enumerate(questions):
        filled = fill_question(question)
        per_node = filled.per_node or filled.ranks
        settings = {"run": "asked", **filled.settings}
        runs[str(place)] = {
            **{f"TRAINER_{name.upper()}": value for name, value in settings.items()},
            "PET_NNODES": str(filled.ranks // per_node),
            "PET_NPROC_PER_NODE": str(per_node),
        }
    found = ask_trainer(runs, kept, ["--shape"], (sys.executable, "-m", "trainer")).refused
    return {
        int(place): _name_typed(questions[int(place)], "; ".join(problems))
        for place, (code, problems) in found.items()
        if code == REFUSED
    }


def count_operations(question: Question, cache: Path) -> OperationsFile:
    """Counts for the settings of `question`, which takes from half a minute on, and keeps the file in `cache`, where
    that can be written.

    Raises:
        NotCounted: there is no trainer here, or these settings cannot be counted.
    """
    weights = question.settings.get("model_path", "")
    if weights and not Path(weights).exists():
        raise NotCounted(
            f"model_path={weights} is not on this machine: name a preset of its shape, as "
            "--set run.config.model=vit_huge, with --set run.config.model_path=null [SL-count-no-weights]"
        )
    env = _drop_settings(os.environ) | {
        f"TRAINER_{name.upper()}": value for name, value in question.settings.items()
    }
    if absent := explain_trainer(sys.executable, env):
        raise NotCounted(f"{absent} [SL-count-no-trainer]")
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "operations.json"
        _run_trainer(question, part, env)
        file = read_operations_file(part)
        place = cache / f"{file.model.replace('/', '_')}-{file.strategy}-{file.key}.json"
        try:
            cache.mkdir(parents=True, exist_ok=True)
            _replace(place, part.read_bytes())
        except OSError as failure:
            _tell_unkept(cache, failure.strerror or str(failure))
        return replace(file, path=place)


def _run_trainer(question: Question, part: Path, env: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "trainer.count", "--ranks", str(question.ranks)]
    command += ["--per-node", str(question.per_node), "--operations", str(part)]
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
        kind = CountRefused if running.returncode == REFUSED else NotCounted
        told = "; ".join(words) or f"the trainer ended with {running.returncode} [SL-count-failed]"
        raise kind(_name_typed(question, told))


def _drop_settings(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith("TRAINER_")}


def _name_typed(question: Question, told: str) -> str:
    """The trainer's words, with each setting as it was typed."""
    return name_settings(told) if question.whole else VARIABLE.sub(lambda found: found[1].lower(), told)


def _replace(place: Path, content: bytes) -> None:
    """Whole or not at all, also where somebody reads it."""
    part = place.with_name(f".{place.name}-{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)


@functools.cache
def _tell_unkept(cache: Path, reason: str) -> None:
    """Once."""
    print(
        f"{cache}: cannot be written ({reason}), so what is counted is not kept; XDG_CACHE_HOME names another place",
        file=sys.stderr,
    )
