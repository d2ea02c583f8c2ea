"""Decide whether a run has ended, and how, only by its files: the one answer of every command.

read_status     from the events of its attempts: finished, failed, stopped, unfinished.
read_standing   the same for lists and metrics, which also show running runs.
look            for programs that wait for its end, and do not know whether another attempt will come.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stratlab.run_directory.files import Shape, read_line, read_lines

Status = Literal["finished", "failed", "stopped", "unfinished", "traces only", "not a run"]
Event = dict[str, Any]
STOPPED_FROM_OUTSIDE = 143
"""The trainer's exit code of a run that was suspended, drained or stopped: it resumes there."""
MAY_BE_RETRIED = 128
"""Exit codes from this value belong to signals: a cluster starts another attempt."""
TRACED: Status = "traces only"
"""Of another program: a run's settings and its end are unknown."""
AT_WORK = "at work"
ALIVE_S = 120.0
"""A run that has not ended and has written something in this time is at work."""
Fingerprint = tuple[tuple[str, int, int], ...]


def read_attempts(folder: Path, problems: list[str] | None = None) -> list[Event]:
    """Return the events of attempts.jsonl; other lines, such as a half-written one, are left out."""
    needs: Shape = {"event": str, "t": (int, float), "attempt": int}
    return read_lines(folder / "attempts.jsonl", [] if problems is None else problems, needs)


def read_events(folder: Path) -> list[Event]:
    """Return the events for a program that waits: a start or an end needs only its kind; `attempt` defaults to 1."""
    events = [{"attempt": 1, **line} for line in read_lines(folder / "attempts.jsonl", [], {"event": str})]
    return [event for event in events if isinstance(event["attempt"], int)]


def has_ended(attempts: Sequence[Event]) -> bool:
    """Return whether the newest attempt has written its end."""
    return bool(attempts) and attempts[-1]["event"] == "ended"


def is_comparable(status: str, degenerate: bool) -> bool:
    """Return whether a run may be ranked, explained and judged with others."""
    return status in ("finished", TRACED) and not degenerate


def read_status(attempts: Sequence[Event], has_summary: bool) -> tuple[Status, str]:
    """Return the status of the run, and a sentence about its end."""
    last = attempts[-1] if attempts else {}
    if last.get("event") == "started":
        return "unfinished", f"attempt {last.get('attempt')} has started and not ended"
    if last.get("event") != "ended":
        return "finished" if has_summary else "unfinished", "no record of attempts"
    ending = f"{last.get('reason', 'no reason given')} (exit code {last.get('exit_code')})"
    ending += f": {last['text']}" if isinstance(last.get("text"), str) else ""
    if last.get("exit_code") != 0:
        return "stopped" if last.get("exit_code") == STOPPED_FROM_OUTSIDE else "failed", ending
    return ("finished", ending) if has_summary else ("unfinished", f"{ending}, but there is no summary.json")


def read_standing(
    folder: Path, mode: object, attempts: Sequence[Event], has_summary: bool
) -> tuple[str, str]:
    """Do the same as `read_status`, with AT_WORK for a run that has just written something.

    Args:
        mode: as requested; an evaluation does not write a summary, and is finished if it has ended with 0.
    """
    status, ending = read_status(attempts, has_summary)
    if mode == "evaluate" and attempts and attempts[-1].get("exit_code") == 0:
        return "finished", ending
    return (AT_WORK if status == "unfinished" and is_alive(folder) else status), ending


def is_alive(folder: Path) -> bool:
    """Return whether the run has not ended and has written something just now."""
    attempts = read_attempts(folder)
    if not attempts or attempts[-1]["event"] != "started":
        return False
    written = [path.stat().st_mtime for name in ("*", "ranks/*", "traces/*") for path in folder.glob(name)]
    return time.time() - max(written, default=0.0) < ALIVE_S


@dataclass(frozen=True)
class Outcome:
    """`ended` and one sentence about the files; `exit_code` is the run's, None if it is not in the files."""

    ended: bool
    sentence: str
    exit_code: int | None = None


def look(run_dir: Path, *, quiet: bool) -> Outcome:
    """Return the state of a run now. `quiet`: its files have not changed for so long that no new attempt will come."""
    manifest = run_dir / "traces" / "manifest.json"
    is_complete = manifest.is_file() and read_line(manifest.read_bytes()).get("complete") is True
    if is_complete and (run_dir / "summary.json").is_file():
        return Outcome(True, f"{run_dir}: traces and summary are complete", 0)
    if not run_dir.is_dir():
        return Outcome(False, f"{run_dir}: no such folder yet")
    events = read_events(run_dir)
    if not events:
        return Outcome(False, f"{run_dir}: no attempt has started yet")
    attempt = max(event["attempt"] for event in events)
    ends = [event for event in events if event["attempt"] == attempt and event["event"] == "ended"]
    codes = [event["exit_code"] for event in ends if isinstance(event.get("exit_code"), int)]
    for code in codes:
        if code < MAY_BE_RETRIED:
            return Outcome(True, f"{run_dir}: attempt {attempt} ended with exit code {code}", code)
    if codes:
        sentence = f"{run_dir}: attempt {attempt} ended with exit code {codes[-1]}, which may be tried again"
        return Outcome(quiet, sentence + (", but nothing came after it" if quiet else ""), codes[-1])
    return Outcome(False, f"{run_dir}: attempt {attempt} is running")


def fingerprint(run_dir: Path) -> Fingerprint:
    """Return a value that changes whenever the trainer writes: attempts, metrics, or a rank's own log."""
    files = [run_dir / "attempts.jsonl", run_dir / "metrics.jsonl", *sorted(run_dir.glob("ranks/*"))]
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
