"""The whole rehearsal: an MLflow server, then one run after the other, each followed by its analysis."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import yaml

from stratlab.machine.environment import build_machine_env
from stratlab.machine.interruption import Interrupted
from stratlab.machine.processes import Processes, free_port
from stratlab.predict.foretelling import foretell
from stratlab.progress.display import Display
from stratlab.progress.growing_wait import GrowingWait
from stratlab.progress.run_progress import Progress, RunReader, format_seconds
from stratlab.rehearse.folders import make_folder, remove_empty, replaced
from stratlab.rehearse.planned_run import PlannedRun, Request, build_plan
from stratlab.rehearse.replicas import PodEnd, deciding_end, run_pods
from stratlab.rehearse.summary import RunEnd, describe_failure, describe_stop, describe_success
from stratlab.rendering.checking import TRAINER, Refused, ask_trainer, list_refusals
from stratlab.rendering.pod_commands import Pod
from stratlab.run_directory.outcome import read_attempts
from stratlab.tracking.server import run_server

REFRESH_S = 0.5
SEPARATOR = re.compile(r"(?<!\\),")
"""Of settings that helm takes in one --set; a comma of a value has a backslash before it."""


def rehearse(
    request: Request,
    display: Display,
    *,
    start_server: Callable[..., AbstractContextManager[str]] = run_server,
) -> list[RunEnd]:
    """Runs every chart of `request`; stops at the first that fails unless told to keep going.

    Whatever happens, no process is left behind, and where no run got as far as its run directory, no file.

    Raises:
        UserError: something in the request, a chart or this machine is wrong; nothing was started.
        Refused: the trainer refuses settings or data of a run; nothing was started.
    """
    port = free_port()
    plan = build_plan(request, f"http://127.0.0.1:{port}")
    asked = ", ".join(dict.fromkeys(run.accelerator for run in plan if run.accelerator))
    if asked and asks_for_accelerator(request):
        display.say(
            f"run.accelerator={asked} is not asked for in a rehearsal, which trains on what this machine has; on a "
            "cluster a run that does not get it ends with exit code 4"
        )
    check_settings(plan, request.replace, display)
    for run in plan:
        if told := foretell(run.name, run.pods[0].commands[-1].env, request.results):
            display.say(told)
    created = make_folder(request.mlflow)
    ends: list[RunEnd] = []
    try:
        with start_server(request.mlflow, port, progress=display.say):
            for run in plan:
                ends.append(rehearse_run(run, request, display))
                if ends[-1].code and not request.keep_going:
                    break
    finally:
        if request.mlflow in created and not any(run.run_dir.exists() for run in plan):
            shutil.rmtree(request.mlflow)
        remove_empty(created)
    return ends


def asks_for_accelerator(request: Request) -> bool:
    """Whether the user has named one: that of the charts is there in every rehearsal, and says nothing."""
    files = (yaml.safe_load(file.read_text()) for file in request.values)
    runs = (content.get("run") for content in files if isinstance(content, dict))
    settings = (one for text in request.settings for one in SEPARATOR.split(text))
    return any(setting.startswith("run.accelerator=") for setting in settings) or any(
        "accelerator" in run for run in runs if isinstance(run, dict)
    )


def check_settings(plan: Sequence[PlannedRun], replace: bool, display: Display) -> None:
    """Lets the trainer check all runs, as far as it is the trainer that they start.

    Raises:
        Refused: by the trainer, with every sentence; or there is none that could be started.
    """
    commands = {run.name: run.pods[0].commands[-1] for run in plan}
    runs = {name: command.env for name, command in commands.items() if command.arguments == TRAINER}
    if not runs:
        return
    display.say(f"checking the settings of {', '.join(runs)}")
    patience = GrowingWait(0)

    def tell(waited: float) -> None:
        if patience.is_over(waited):
            display.say(
                f"still checking them, for {format_seconds(waited)}: data, models and tokenizers are read for it"
            )

    answers = ask_trainer(runs, build_machine_env(os.environ), ["--replace"] if replace else [], waiting=tell)
    if answers.is_absent:
        raise Refused([answers.reason], 2)
    if answers.reason:
        display.say(f"the settings could not be checked beforehand: {answers.reason}")
    if answers.refused:
        lines = list_refusals(answers, len(runs), runs)
        raise Refused(lines, min(code for code, _ in answers.refused.values()))


def rehearse_run(run: PlannedRun, request: Request, display: Display) -> RunEnd:
    """One run and its analysis, with the server that its plan names; leaves no process behind."""
    created: list[Path] = []
    try:
        with replaced(run.run_dir, replace=request.replace):
            pods = [*run.pods, *([run.analysis] if run.analysis else [])]
            for folder in (*(claim for pod in pods for claim in pod.claims), run.logs):
                created += make_folder(folder)
            return _train_and_analyze(run, request.analysis, display)
    except Interrupted:
        if run.run_dir.exists():
            display.end(run.name, describe_stop(run.run_dir))
        raise
    finally:
        if not run.run_dir.exists():
            shutil.rmtree(run.logs, ignore_errors=True)
        remove_empty(created)


def _train_and_analyze(run: PlannedRun, analysis: bool, display: Display) -> RunEnd:
    started = time.monotonic()
    reader = RunReader(run.run_dir)
    end = _run_stage(run, run.pods, reader.read, display)
    if end.code:
        display.end(run.name, "\n".join(describe_failure(run, end, "training")))
        if run.analysis and analysis and _has_final_traces(run.run_dir, end.code):
            after = _run_stage(run, [run.analysis], lambda: Progress("analyzing what it left"), display)
            display.end(run.name, "its traces are analyzed" if after.code == 0 else "analysis failed too")
        return RunEnd(run.name, run.run_dir, end.code)
    trained = describe_success(run.run_dir, time.monotonic() - started)
    if run.analysis and analysis:
        end = _run_stage(run, [run.analysis], lambda: Progress("analyzing"), display)
        if end.code:
            display.end(run.name, "\n".join([f"training {trained}", *describe_failure(run, end, "analysis")]))
            return RunEnd(run.name, run.run_dir, end.code)
    display.end(run.name, trained)
    return RunEnd(run.name, run.run_dir, 0)


def _has_final_traces(run_dir: Path, code: int) -> bool:
    """After a code from 128 a cluster would try again, and the waiter would wait for that.

    An attempt that has not ended is of another start, beside which this one was refused.
    """
    attempts = read_attempts(run_dir)
    has_ended = bool(attempts) and attempts[-1].get("event") == "ended"
    return code < 128 and has_ended and (run_dir / "traces" / "manifest.json").is_file()


def _run_stage(
    run: PlannedRun,
    pods: Sequence[Pod],
    progress: Callable[[], Progress],
    display: Display,
) -> PodEnd:
    machine_env = build_machine_env(os.environ)
    logs = {pod.name: run.logs / f"{pod.log}.log" for pod in pods}
    for log in logs.values():
        log.write_bytes(b"")
    shown = 0.0

    def tick() -> None:
        nonlocal shown
        if time.monotonic() - shown >= REFRESH_S:
            shown = time.monotonic()
            display.show(run.name, progress())

    return deciding_end(run_pods(pods, Processes(), machine_env, logs, tick))
