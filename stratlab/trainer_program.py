"""Run the trainer as another program: find the installed one, and let it check runs before the first starts.

Other distributions install an import package `trainer` too.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DISTRIBUTION = "stratlab-trainer"
WHEEL = "dist/stratlab_trainer-*.whl dist/stratlab_spec-*.whl of `make dist`"
LOOK = """
import json
from importlib.metadata import distribution, packages_distributions
from importlib.util import find_spec
spec = find_spec("trainer")
owners = map(distribution, sorted(set(packages_distributions().get("trainer", []))))
print(json.dumps([spec and spec.origin, [(o.name, o.version, str(o.locate_file("trainer"))) for o in owners]]))
"""


def explain_trainer(python: str, environ: Mapping[str, str]) -> str:
    """Return why `python -m trainer` would not start stratlab's trainer, with the solution; "" if it would.

    Args:
        python: the interpreter, by its path or its name on the path of `environ`.
        environ: environment of the started process.
    """
    done = subprocess.run([python, "-c", LOOK], env=dict(environ), capture_output=True, text=True)
    if done.returncode:
        return ""  # the output is not about `trainer`
    origin, owners = json.loads(done.stdout.splitlines()[-1])
    again = "--force-reinstall --no-deps " if any(owner[0] == DISTRIBUTION for owner in owners) else ""
    install = f"pip install {again}{WHEEL}"
    if not origin:
        return f"the trainer is not installed here: {install} [SL-trainer-not-installed]"
    folder = Path(origin).parent
    own = folder / "installation.py"  # holds the distribution's name
    ours = own.is_file() and DISTRIBUTION in own.read_text(errors="replace")
    others = [
        (name, version)
        for name, version, place in owners
        if name != DISTRIBUTION and (not ours or Path(place).resolve() == folder.resolve())
    ]
    if others:
        names = " ".join(name for name, _ in others)
        told = ", ".join(f"{name} {version}" for name, version in others)
        return (
            f"`trainer` is an import package of another distribution here, {told} ({origin}): "
            f"pip uninstall {names}, then {install}; or install each into its own environment [SL-trainer-of-others]"
        )
    if ours:
        return ""
    return f"`trainer` is {origin} here, which is not stratlab's: rename it, or change the folder [SL-trainer-foreign]"


TRAINER = ("python", "-m", "trainer")
VARIABLE = re.compile(r"\bTRAINER_([A-Z][A-Z0-9_]*)")
WAITING_S = 5.0
"""Time between two messages of a slow check: it loads a text model's tokenizer."""
NO_SETTINGS = ("RUN", "RESULTS", "IMAGE", "WAIT_S", "ACCELERATOR")  # a chart has other names for these


class Refused(Exception):
    """Report runs that cannot start. `code`: 2, or 3 if only data or a model is missing."""

    def __init__(self, lines: Sequence[str], code: int) -> None:
        between = "\n  " if len(lines) > 1 else " "
        super().__init__(between.join(["no run was started:", *lines]))
        self.code = code


@dataclass(frozen=True)
class Answers:
    """Hold the trainer's answers.

    Attributes:
        refused: run -> (exit code, sentences).
        reason: why the trainer is unavailable, else "".
        notes: run -> sentences about a run that may start.
        is_absent: whether the reason is that stratlab's trainer cannot be started here.
    """

    refused: Mapping[str, tuple[int, Sequence[str]]]
    reason: str = ""
    is_absent: bool = False
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)


def ask_trainer(
    runs: Mapping[str, Mapping[str, str]],
    environ: Mapping[str, str],
    options: Sequence[str],
    program: Sequence[str] = TRAINER,
    waiting: Callable[[float], None] = lambda seconds: None,
) -> Answers:
    """Return the trainer's answers about `runs`, run -> environment of its pods.

    Args:
        environ: environment of the started process.
        options: `--elsewhere`, `--shape`, `--replace`.
        waiting: receives every WAITING_S the seconds waited.
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
    return Answers(
        {name: (each["code"], each["problems"]) for name, each in found.items() if each["code"]},
        notes={name: each["notes"] for name, each in found.items() if each.get("notes")},
    )


def _ask(
    command: Sequence[str], question: str, environ: dict[str, str], waiting: Callable[[float], None]
) -> subprocess.CompletedProcess[str]:
    began, pipe = time.monotonic(), subprocess.PIPE
    # a file: communicate() on a pipe loses the data that a first call has not written
    with tempfile.TemporaryFile("w+") as asked:
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


def raise_refused(answers: Answers, runs: Mapping[str, Mapping[str, str]]) -> None:
    """Raise Refused with every message if the trainer has refused any of `runs`."""
    if answers.refused:
        lines = list_refusals(answers, len(runs), runs)
        raise Refused(lines, min(code for code, _ in answers.refused.values()))


def list_refusals(
    answers: Answers, count: int, runs: Mapping[str, Mapping[str, str]] | None = None
) -> list[str]:
    """Return every message once, with its runs if `count` is above 1.

    The trainer uses the names of its variables; users of a chart write `run.config.<name>`.

    Args:
        runs: as sent to the trainer; for runs on several nodes the message names the source of their processes.
    """
    problems = {
        name: [_divide_processes(name_settings(each), (runs or {}).get(name, {})) for each in found]
        for name, (_, found) in answers.refused.items()
    }
    return _name_once(problems, count)


def list_notes(answers: Answers, count: int) -> list[str]:
    """Return every note about runs that may start once, as `list_refusals` returns messages."""
    return _name_once({name: [*map(name_settings, notes)] for name, notes in answers.notes.items()}, count)


def _name_once(sentences: Mapping[str, Sequence[str]], count: int) -> list[str]:
    about: dict[str, list[str]] = {}
    for name, found in sentences.items():
        for sentence in found:
            about.setdefault(sentence, []).append(name)
    return [
        sentence if count == 1 else f"{', '.join(names)}: {sentence}" for sentence, names in about.items()
    ]


def name_settings(problem: str) -> str:
    """Return the trainer's message with its variables under the chart's names."""

    def name_setting(found: re.Match[str]) -> str:
        return found[0] if found[1] in NO_SETTINGS else f"run.config.{found[1].lower()}"

    return VARIABLE.sub(name_setting, problem)


def _divide_processes(problem: str, env: Mapping[str, str]) -> str:
    """Explain `x 4 processes` of two nodes, because some charts set run.nodes, which the user did not type."""
    nodes, each = env.get("PET_NNODES", "1").split(":")[0], env.get("PET_NPROC_PER_NODE", "1")
    if not (nodes.isdecimal() and each.isdecimal()) or int(nodes) < 2:
        return problem
    found = f"{int(nodes) * int(each)} processes"
    origin = f"(run.nodes={nodes}, the chart's unless given, x run.processesPerNode={each})"
    return re.sub(rf"(?<= x ){found}\b", f"{found} {origin}", problem)
