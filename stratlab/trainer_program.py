"""The trainer as another program: which one would be started here, and what it says of runs before the first starts.

Other distributions install an import package `trainer` too.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    """Why `python -m trainer` would not start stratlab's, and what to do; "" where it would.

    Args:
        python: the interpreter, by its path or its name on the path of `environ`.
        environ: of the process that would be started.
    """
    done = subprocess.run([python, "-c", LOOK], env=dict(environ), capture_output=True, text=True)
    if done.returncode:
        return ""  # no word of this is about `trainer`
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
            f"pip uninstall {names}, then {install}; or give each an environment of its own [SL-trainer-of-others]"
        )
    if ours:
        return ""
    return f"`trainer` is {origin} here, which is not stratlab's: rename it, or start elsewhere [SL-trainer-foreign]"


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
    return Answers({name: (each["code"], each["problems"]) for name, each in found.items() if each["code"]})


def _ask(
    command: Sequence[str], question: str, environ: dict[str, str], waiting: Callable[[float], None]
) -> subprocess.CompletedProcess[str]:
    began, pipe = time.monotonic(), subprocess.PIPE
    # a file: of a pipe, communicate() leaves what a first call has not written
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
    """Raises Refused where the trainer has refused any of `runs`, as it was asked, with every sentence."""
    if answers.refused:
        lines = list_refusals(answers, len(runs), runs)
        raise Refused(lines, min(code for code, _ in answers.refused.values()))


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

    def name_setting(found: re.Match[str]) -> str:
        return found[0] if found[1] in NO_SETTINGS else f"run.config.{found[1].lower()}"

    return VARIABLE.sub(name_setting, problem)


def _divide_processes(problem: str, env: Mapping[str, str]) -> str:
    """`x 4 processes` of two nodes: some charts set run.nodes, which nobody typed."""
    nodes, each = env.get("PET_NNODES", "1").split(":")[0], env.get("PET_NPROC_PER_NODE", "1")
    if not (nodes.isdecimal() and each.isdecimal()) or int(nodes) < 2:
        return problem
    found = f"{int(nodes) * int(each)} processes"
    origin = f"(run.nodes={nodes}, the chart's unless given, x run.processesPerNode={each})"
    return re.sub(rf"(?<= x ){found}\b", f"{found} {origin}", problem)
