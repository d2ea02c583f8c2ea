"""All runs are checked by the trainer itself before the first one starts, and before MLflow does."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.rendering.installation import explain_trainer

TRAINER = ("python", "-m", "trainer")
VARIABLE = re.compile(r"\bTRAINER_([A-Z][A-Z0-9_]*)")
WAITING_S = 5.0
"""Between two words of a check that takes long: a text model's tokenizer is loaded for it."""
NO_SETTINGS = ("RUN", "RESULTS", "IMAGE", "WAIT_S", "ACCELERATOR")  # of a chart: it names these otherwise


class Refused(Exception):
    """Runs that cannot start. `code`: 2, or 3 where all that is wrong is that data or a model is missing."""

    def __init__(self, lines: Sequence[str], code: int) -> None:
        between = "\n  " if len(lines) > 1 else " "
        super().__init__(between.join(["nothing was started:", *lines]))
        self.code = code


@dataclass(frozen=True)
class Answers:
    """What the trainer has said.

    Attributes:
        refused: run -> (exit code, sentences).
        reason: why the trainer could not be asked, else "".
        is_absent: that is because no trainer of stratlab's can be started here.
    """

    refused: Mapping[str, tuple[int, Sequence[str]]]
    reason: str = ""
    is_absent: bool = False


def ask_trainer(
    runs: Mapping[str, Mapping[str, str]],
    environ: Mapping[str, str],
    options: Sequence[str],
    program: Sequence[str] = TRAINER,
    waiting: Callable[[float], None] = lambda seconds: None,
) -> Answers:
    """What the trainer says of `runs`, run -> environment of its pods.

    Args:
        environ: of the process that is started.
        options: `--elsewhere`, `--shape`, `--replace`.
        waiting: hears every WAITING_S for how many seconds it has been asked.
    """
    if not runs:
        return Answers({})
    command = [*program[:-1], f"{program[-1]}.program", "check", *options]
    done = _ask(command, json.dumps({name: dict(env) for name, env in runs.items()}), dict(environ), waiting)
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        if absence := explain_trainer(program[0], environ):
            return Answers({}, absence, is_absent=True)
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Answers({}, words[-1])
    refused = {name: (each["code"], each["problems"]) for name, each in found.items() if each["code"]}
    return Answers(refused)


def _ask(
    command: Sequence[str], question: str, environ: dict[str, str], waiting: Callable[[float], None]
) -> subprocess.CompletedProcess[str]:
    began, pipe = time.monotonic(), subprocess.PIPE
    with tempfile.TemporaryFile(
        "w+"
    ) as asked:  # of a pipe, communicate() leaves what a first call has not written
        asked.write(question)
        asked.seek(0)
        with subprocess.Popen(
            command, env=environ, stdin=asked, stdout=pipe, stderr=pipe, text=True
        ) as process:
            try:
                while True:
                    try:
                        out, err = process.communicate(timeout=WAITING_S)
                        return subprocess.CompletedProcess(command, process.returncode, out, err)
                    except subprocess.TimeoutExpired:
                        waiting(time.monotonic() - began)
            except BaseException:
                process.kill()
                raise


def list_refusals(
    answers: Answers, count: int, runs: Mapping[str, Mapping[str, str]] | None = None
) -> list[str]:
    """Every sentence once, with the runs that it is about where there are `count` above 1.

    The trainer knows its variables; who installs a chart wrote `run.config.<name>`.

    Args:
        runs: as the trainer was asked; of those on several nodes it is said where their processes come from.
    """
    about: dict[str, list[str]] = {}
    for name, (_, problems) in answers.refused.items():
        for problem in problems:
            told = _divide_processes(name_settings(problem), (runs or {}).get(name, {}))
            about.setdefault(told, []).append(name)
    return [problem if count == 1 else f"{', '.join(names)}: {problem}" for problem, names in about.items()]


def name_settings(problem: str) -> str:
    """The trainer's sentence, with each of its variables as who installs a chart writes it."""
    return VARIABLE.sub(_name_setting, problem)


def _name_setting(found: re.Match[str]) -> str:
    return found[0] if found[1] in NO_SETTINGS else f"run.config.{found[1].lower()}"


def _divide_processes(problem: str, env: Mapping[str, str]) -> str:
    """`x 4 processes` of two nodes: some charts set run.nodes, which nobody typed."""
    nodes, each = env.get("PET_NNODES", "1").split(":")[0], env.get("PET_NPROC_PER_NODE", "1")
    if not (nodes.isdecimal() and each.isdecimal()) or int(nodes) < 2:
        return problem
    found = f"{int(nodes) * int(each)} processes"
    origin = f"(run.nodes={nodes}, the chart's unless given, x run.processesPerNode={each})"
    return re.sub(rf"(?<= x ){found}\b", f"{found} {origin}", problem)
