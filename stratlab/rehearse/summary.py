"""What a rehearsal says at the end of a run, and at its own end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratlab.machine.full_volume import say_full
from stratlab.machine.own_program import name_program, shorten
from stratlab.machine.processes import tail
from stratlab.progress.run_progress import format_seconds
from stratlab.rehearse.planned_run import PlannedRun
from stratlab.rehearse.replicas import PodEnd
from stratlab.run_directory.files import Shape, read_lines, read_object
from stratlab.run_directory.places import find_page
from stratlab.traces.manifest import MANIFEST, read_dropped

EVENT: Shape = {"event": str}
STORAGE_FULL = 13
AGAIN = "--replace trains it again from the beginning"
HEADLINES = ("train_loss", "test_accuracy_pct", "test_perplexity")
SPEEDS = ("samples_per_s", "useful_tokens_per_s")
TOLD = (
    *("strategy", "model", "steps", "measured_steps", "world_size", "device_type", "backend"),
    *("step_time_ms_p50", *SPEEDS, *HEADLINES),
)


@dataclass(frozen=True)
class RunEnd:
    """How one run of a rehearsal ended. `code` is its exit code, or that of its analysis."""

    name: str
    run_dir: Path
    code: int


def describe_success(run_dir: Path, time_s: float) -> str:
    """`done in 34 s: 60 steps, world size 2 (cpu, gloo), train_loss 0.1, ...`: what summary.json holds."""
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
        steps = summary.get("measured_steps")
        facts.append(
            f"{' and '.join(speeds)} (mean of {steps or 'the'} timed steps; a comparison takes the median)"
        )
    text = f"{text}: {', '.join(facts)}" if facts else text
    if dropped := read_dropped(run_dir / "traces" / MANIFEST):
        text += f"\nwarning: traces were dropped, {dropped}; the analysis lacks them"
    starts = sum(line["event"] == "started" for line in read_lines(run_dir / "attempts.jsonl", [], EVENT))
    if starts > 1:
        text += f"\nit took {starts} attempts, so a comparison shows it and judges it with nobody: {AGAIN}"
    return text


def describe_end(end: RunEnd) -> dict[str, Any]:
    """For a program: where the run is, how it ended and why, what it measured; what is not known is null."""
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
    """What the user who stopped a run can do with what is there."""
    if read_object(run_dir / "summary.json", []):
        command = f"{name_program()} analyze {shlex.quote(str(shorten(run_dir)))}"
        return f"stopped after its training; {command} makes its report"
    if any(run_dir.glob("checkpoints/step_*/COMMIT")):
        return "stopped; the same chart with the same options goes on from its newest checkpoint"
    return (
        "stopped; the same chart with the same options trains it from the beginning: there is no checkpoint yet "
        "(run.config.checkpoint_every, checkpoint_minutes)"
    )


def describe_failure(run: PlannedRun, end: PodEnd, what: str) -> list[str]:
    """The exit code, the trainer's reason for it, the last lines of the log, what a cluster would do now."""
    reason = _reason(run.run_dir, end.code) or ("storage full" if end.code == STORAGE_FULL else "")
    lines = [
        f"{what} failed with exit code {end.code}" + (f" ({reason})" if reason else "") + f" in {end.pod}"
    ]
    lines += [f"  | {line}" for line in tail(end.log).splitlines()]
    again = run.restart_policy in ("OnFailure", "Always") or (
        run.restart_policy == "ExitCode" and end.code >= 128
    )
    if what == "training" and again:
        lines.append(
            f"  a cluster would start it again (restartPolicy {run.restart_policy}); a rehearsal does not: the same "
            "command again goes on from its newest checkpoint, or from the start"
        )
    if full := say_full(run.logs):  # then the log may hold nothing of it
        lines.append(f"  {full}: free space, then the same command again goes on")
    if run.run_dir.exists():
        lines.append(f"  log: {end.log}")
    return lines


def next_commands(ends: Sequence[RunEnd], mlflow: Path) -> list[str]:
    """Where the runs are, and the commands that look at them, as they can be typed here."""
    finished = [end for end in ends if end.run_dir.is_dir()]
    if not finished:
        return []
    program, store = name_program(), shlex.quote(str(shorten(mlflow)))
    lines = [f"run directory: {shorten(end.run_dir)}" for end in finished]
    comparisons = [shorten(end.run_dir.parent) for end in ends if end.code == 0]
    lines += [
        f"compare them:  {program} compare {shlex.quote(str(folder))} --mlflow {store}"
        for folder in dict.fromkeys(comparisons)
        if comparisons.count(folder) > 1
    ]
    return [*lines, f"see them:      {program} mlflow {store}"]


def _reason(run_dir: Path, code: int) -> str:
    events = read_lines(run_dir / "attempts.jsonl", [], EVENT)
    reasons = [e.get("reason", "") for e in events if e["event"] == "ended" and e.get("exit_code") == code]
    return str(reasons[-1]) if reasons else ""
