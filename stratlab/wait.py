"""Waits until a run has ended, by the files of its run directory alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QUIET_S = 120.0


@dataclass(frozen=True)
class Outcome:
    """`ended` and one sentence of what was seen."""

    ended: bool
    sentence: str


def wait_for_run(
    run_dir: Path,
    *,
    deadline_s: float | None = None,
    poll_s: float = 1.0,
    quiet_s: float = QUIET_S,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Returns when the run in `run_dir` has ended, or when `deadline_s` have passed.

    A run has ended when its last attempt ended with a code that ends the run (0, or below 128); or with
    another code, and nothing new was written for `quiet_s`, so that no further attempt is to be expected; or
    when its traces are complete and its summary is there. `say` gets a sentence whenever what is seen has
    changed.
    """
    started = time.monotonic()
    changed, fingerprint, told = started, None, ""
    while True:
        now = time.monotonic()
        seen = _fingerprint(run_dir)
        if seen != fingerprint:
            changed, fingerprint = now, seen
        outcome = look(run_dir, quiet=now - changed >= quiet_s)
        if outcome.ended:
            return outcome
        if deadline_s is not None and now - started >= deadline_s:
            return outcome
        if outcome.sentence != told:
            told = outcome.sentence
            say(told)
        time.sleep(poll_s)


def look(run_dir: Path, *, quiet: bool) -> Outcome:
    """The state of a run now. `quiet`: nothing was written for so long that no new attempt will come."""
    if _is_complete(run_dir / "traces" / "manifest.json") and (run_dir / "summary.json").is_file():
        return Outcome(True, f"{run_dir}: traces and summary are complete")
    if not run_dir.is_dir():
        return Outcome(False, f"{run_dir}: no such folder yet")
    events = read_attempts(run_dir)
    if not events:
        return Outcome(False, f"{run_dir}: no attempt has started yet")
    attempt = max(int(event.get("attempt", 1)) for event in events)
    codes = [
        int(event["exit_code"])
        for event in events
        if event.get("attempt", 1) == attempt and event.get("event") == "ended"
    ]
    final = [code for code in codes if code < 128]
    if final:
        return Outcome(True, f"{run_dir}: attempt {attempt} ended with exit code {final[0]}")
    if codes:
        sentence = f"{run_dir}: attempt {attempt} ended with exit code {codes[-1]}, which may be tried again"
        return Outcome(quiet, sentence + (", but nothing came after it" if quiet else ""))
    return Outcome(False, f"{run_dir}: attempt {attempt} is running")


def read_attempts(run_dir: Path) -> list[dict[str, Any]]:
    """The events of attempts.jsonl; a last line that is only half written is left out."""
    path = run_dir / "attempts.jsonl"
    if not path.is_file():
        return []
    text = path.read_bytes()
    return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines() if line.strip()]


def _is_complete(manifest: Path) -> bool:
    return manifest.is_file() and json.loads(manifest.read_bytes()).get("complete") is True


def _fingerprint(run_dir: Path) -> tuple[tuple[str, int, int], ...]:
    """Changes whenever the trainer writes: on attempts, metrics, or a rank's own log."""
    files = [run_dir / "attempts.jsonl", run_dir / "metrics.jsonl", *sorted(run_dir.glob("ranks/*"))]
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
