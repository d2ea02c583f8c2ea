"""Rehearse charts: run the rendered objects as local processes, without cluster, container or GPU.

`rehearse` renders and checks everything (rehearsal_plan.py), starts an MLflow server, then runs one chart after the
other, each followed by its analysis. `run_pods` runs pods to their end, and the `describe_*` functions report results.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stratlab.machine import (
    TICK_S,
    GrowingWait,
    Interrupted,
    Processes,
    build_machine_env,
    exit_code,
    free_port,
    name_program,
    say_full,
    shorten,
    tail,
)
from stratlab.pod_commands import Pod
from stratlab.predict.answering import foretell
from stratlab.progress import Display, Progress, RunReader, format_seconds
from stratlab.rehearsal_plan import (
    PlannedRun,
    RehearsalRequest,
    build_rehearsal_plan,
    make_folder,
    remove_empty,
    replaced,
)
from stratlab.run_directory.files import Shape, find_page, read_lines, read_object
from stratlab.run_directory.outcome import has_ended, read_events
from stratlab.traces.discover import MANIFEST, read_dropped
from stratlab.tracking_server import run_server
from stratlab.trainer_program import TRAINER, Refused, ask_trainer, list_notes, raise_refused
from stratlab_spec.exit_codes import ACCELERATORS_MISSING, PEER_LOST, STORAGE_FULL
from stratlab_spec.run_directory import REHEARSAL_PID

AFTER_FAILURE_S = 30.0
EVENT: Shape = {"event": str}
AGAIN = "--replace trains it again from the beginning"
HEADLINES = ("train_loss", "test_accuracy_pct", "test_perplexity")
SPEEDS = ("samples_per_s", "useful_tokens_per_s")
TOLD = (
    *("strategy", "model", "steps", "measured_steps", "world_size", "device_type", "backend"),
    *("step_time_ms_p50", *SPEEDS, *HEADLINES),
)
REFRESH_S = 0.5
SEPARATOR = re.compile(r"(?<!\\),")
"""Separator of settings that helm accepts in one --set; a comma in a value has a backslash before it."""


@dataclass(frozen=True)
class LocalPodEnd:
    """Describe how a pod ended; `stopped` only if another pod had failed and this pod continued."""

    pod: str
    log: Path
    code: int
    stopped: bool = False


def run_pods(
    pods: Sequence[Pod],
    processes: Processes,
    machine_env: Mapping[str, str],
    logs: Mapping[str, Path],
    tick: Callable[[], None],
    *,
    after_failure_s: float = AFTER_FAILURE_S,
) -> list[LocalPodEnd]:
    """Start all pods at once and return their ends, in order of time.

    When one has failed, the others have `after_failure_s` to notice it and to end; then they are stopped. On return, no
    process of them runs. `logs` is by pod name; `tick` is called regularly.
    """
    ends: list[LocalPodEnd] = []
    deadline = float("inf")
    waiting = {pod.name: list(pod.commands) for pod in pods}
    running: dict[str, subprocess.Popen[bytes]] = {}

    def start_next(pod: str) -> None:
        command = waiting[pod].pop(0)
        env = {**machine_env, **command.env}
        running[pod] = processes.start(command.arguments, env, logs[pod], folder=command.folder)

    try:
        for pod in waiting:
            start_next(pod)
        while running:
            for pod, process in list(running.items()):
                code = exit_code(process)
                if code == 0 and waiting[pod]:
                    start_next(pod)
                elif code is not None:
                    del running[pod]
                    ends.append(LocalPodEnd(pod, logs[pod], code))
                    deadline = min(deadline, time.monotonic() + after_failure_s) if code else deadline
            if time.monotonic() > deadline:
                processes.stop()
                for pod, process in running.items():
                    ends.append(LocalPodEnd(pod, logs[pod], exit_code(process) or 0, stopped=True))
                break
            tick()
            time.sleep(TICK_S)
    finally:
        processes.stop()
    return ends


def deciding_end(ends: Sequence[LocalPodEnd]) -> LocalPodEnd:
    """Return the end that decides the run: a permanent failure first, then a signal, then 134; among equals the first.

    A code below 128 is permanent: the operator fails the job for it, with any other codes. 134 means 'a peer
    was lost', so a pod with another code is the peer.
    """
    failed = [end for end in ends if end.code and not end.stopped]
    permanent = [end for end in failed if end.code < 128]
    culprits = [end for end in failed if end.code != PEER_LOST]
    return (permanent or culprits or failed or list(ends))[0]


@dataclass(frozen=True)
class RunEnd:
    """Describe how one run of a rehearsal ended. `code` is its exit code, or its analysis' exit code."""

    name: str
    run_dir: Path
    code: int


def describe_success(run_dir: Path, time_s: float) -> str:
    """Format summary.json: `done in 34 s: 60 steps, world size 2 (cpu, gloo), train_loss 0.1, ...`."""
    text = f"done in {format_seconds(time_s)}"
    summary = read_object(run_dir / "summary.json", [])
    if not summary:
        return f"{text}, without a summary.json"
    facts = [f"{summary['steps']} steps"] if "steps" in summary else []
    if "world_size" in summary:
        origin = ", ".join(str(summary[key]) for key in ("device_type", "backend") if summary.get(key))
        facts.append(f"world size {summary['world_size']}" + (f" ({origin})" if origin else ""))
    facts += [f"{name} {summary[name]:.4g}" for name in HEADLINES if summary.get(name) is not None]
    speeds = [f"{name} {summary[name]:.4g}" for name in SPEEDS if summary.get(name) is not None]
    if speeds:
        timed = f"at the median of {summary.get('measured_steps') or 'the'} timed steps"
        facts.append(f"{' and '.join(speeds)} ({timed})")
    text = f"{text}: {', '.join(facts)}" if facts else text
    if dropped := read_dropped(run_dir / "traces" / MANIFEST):
        text += f"\nwarning: traces were dropped, {dropped}; the analysis lacks them"
    starts = sum(line["event"] == "started" for line in read_lines(run_dir / "attempts.jsonl", [], EVENT))
    if starts > 1:
        text += f"\nit needed {starts} attempts, so a comparison shows it but does not judge it: {AGAIN}"
    return text


def describe_end(end: RunEnd) -> dict[str, Any]:
    """Return a run's place, end, reason and measurements for programs; null for unknown values."""
    summary = read_object(end.run_dir / "summary.json", [])
    report = find_page(end.run_dir)
    return {
        "run": end.name,
        "comparison": end.run_dir.parent.name,
        "run_dir": str(end.run_dir),
        "exit_code": end.code,
        "reason": _reason(end.run_dir, end.code) or None,
        "report": str(report) if report.is_file() else None,
        **{name: summary.get(name) for name in TOLD},
    }


def describe_stop(run_dir: Path) -> str:
    """Explain how to use the files of a stopped run."""
    if read_object(run_dir / "summary.json", []):
        command = f"{name_program()} analyze {shlex.quote(str(shorten(run_dir)))}"
        return f"stopped after its training; {command} makes its report"
    if any(run_dir.glob("checkpoints/step_*/COMMIT")):
        return "stopped; the same chart with the same options resumes from its newest checkpoint"
    why = "there is no checkpoint yet (run.config.checkpoint_every, checkpoint_minutes)"
    return f"stopped; the same chart with the same options trains it from the beginning: {why}"


def describe_failure(run: PlannedRun, end: LocalPodEnd, what: str) -> list[str]:
    """Format the exit code, the trainer's reason, the last lines of the log, and a cluster's reaction."""
    reason = _reason(run.run_dir, end.code) or ("storage full" if end.code == STORAGE_FULL else "")
    because = f" ({reason})" if reason else ""
    lines = [f"{what} failed with exit code {end.code}{because} in {end.pod}"]
    lines += [f"  | {line}" for line in tail(end.log).splitlines()]
    policy = run.restart_policy
    again = policy in ("OnFailure", "Always") or (policy == "ExitCode" and end.code >= 128)
    if what == "training" and again:
        lines.append(
            f"  a cluster would start it again (restartPolicy {policy}); a rehearsal does not: repeat the same "
            "command to resume from its newest checkpoint, or from the start"
        )
    if full := say_full(run.logs):  # the log may then lack any reason
        lines.append(f"  {full}: free space, then repeat the same command to resume")
    if run.run_dir.exists():
        lines.append(f"  log: {end.log}")
    return lines


def next_commands(ends: Sequence[RunEnd], mlflow: Path) -> list[str]:
    """Return the runs' places, and commands that show them, ready to type here."""
    lines = [f"run directory: {shorten(end.run_dir)}" for end in ends if end.run_dir.is_dir()]
    if not lines:
        return []
    program, store = name_program(), shlex.quote(str(shorten(mlflow)))
    comparisons = Counter(shorten(end.run_dir.parent) for end in ends if end.code == 0)
    for folder, count in comparisons.items():
        if count > 1:
            lines.append(f"compare them:  {program} compare {shlex.quote(str(folder))} --mlflow {store}")
    return [*lines, f"see them:      {program} mlflow {store}"]


def _reason(run_dir: Path, code: int) -> str:
    events = read_lines(run_dir / "attempts.jsonl", [], EVENT)
    reasons = [e.get("reason", "") for e in events if e["event"] == "ended" and e.get("exit_code") == code]
    return str(reasons[-1]) if reasons else ""


def rehearse(
    request: RehearsalRequest,
    display: Display,
    *,
    start_server: Callable[..., AbstractContextManager[str]] = run_server,
) -> list[RunEnd]:
    """Run every chart of `request`; stop at the first failure unless `keep_going` is set.

    No process remains at the end. If no run created its run directory, no file remains either.

    Raises:
        UserError: the request, a chart or this machine has an error; no run was started.
        Refused: the trainer refuses settings or data of a run; no run was started.
    """
    port = free_port()
    plan = build_rehearsal_plan(request, f"http://127.0.0.1:{port}")
    asked = ", ".join(dict.fromkeys(run.accelerator for run in plan if run.accelerator))
    if asked and asks_for_accelerator(request):
        display.say(
            f"run.accelerator={asked} is ignored in a rehearsal, which trains on the devices of this machine; on a "
            f"cluster a run without this accelerator ends with exit code {ACCELERATORS_MISSING}"
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


def asks_for_accelerator(request: RehearsalRequest) -> bool:
    """Return whether the user has set an accelerator; the charts' default appears in every rehearsal."""
    files = (yaml.safe_load(file.read_text()) for file in request.values)
    runs = (content.get("run") for content in files if isinstance(content, dict))
    settings = (one for text in request.settings for one in SEPARATOR.split(text))
    return any(setting.startswith("run.accelerator=") for setting in settings) or any(
        "accelerator" in run for run in runs if isinstance(run, dict)
    )


def check_settings(plan: Sequence[PlannedRun], replace: bool, display: Display) -> None:
    """Check all runs with the trainer, if they start the trainer.

    Raises:
        Refused: by the trainer, with every message; or no trainer could be started.
    """
    commands = {run.name: run.pods[0].commands[-1] for run in plan}
    runs = {name: command.env for name, command in commands.items() if command.arguments == TRAINER}
    if not runs:
        return
    display.say(f"checking the settings of {', '.join(runs)}")
    patience = GrowingWait(0)

    def tell(waited: float) -> None:
        if patience.is_over(waited):
            read = "data, models and tokenizers are read for it"
            display.say(f"still checking them, for {format_seconds(waited)}: {read}")

    answers = ask_trainer(runs, build_machine_env(os.environ), ["--replace"] if replace else [], waiting=tell)
    if answers.is_absent:
        raise Refused([answers.reason], 2)
    if answers.reason:
        display.say(f"the settings could not be checked beforehand: {answers.reason}")
    raise_refused(answers, runs)
    for note in list_notes(answers, len(runs)):
        display.say(note)


def rehearse_run(run: PlannedRun, request: RehearsalRequest, display: Display) -> RunEnd:
    """Run one chart and its analysis, with the server that its plan names; leave no process."""
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
            after = _run_stage(run, [run.analysis], lambda: Progress("analyzing its files"), display)
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
    """Return whether no further traces will come: after a code from 128 a cluster would start the run again.

    An unfinished attempt belongs to another start, because of which this start was rejected.
    """
    has_traces = (run_dir / "traces" / "manifest.json").is_file()
    return code < 128 and has_traces and has_ended(read_events(run_dir))


def _run_stage(
    run: PlannedRun, pods: Sequence[Pod], progress: Callable[[], Progress], display: Display
) -> LocalPodEnd:
    machine_env = build_machine_env(os.environ) | {REHEARSAL_PID: str(os.getpid())}
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
