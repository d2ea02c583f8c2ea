"""What the files of a run directory say about its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratlab.run_directory.files import read_line

Fingerprint = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Outcome:
    """`ended` and one sentence of what was seen; `exit_code` is the run's, None where no file tells it."""

    ended: bool
    sentence: str
    exit_code: int | None = None


def look(run_dir: Path, *, quiet: bool) -> Outcome:
    """The state of a run now. `quiet`: nothing was written for so long that no new attempt will come."""
    if _is_complete(run_dir / "traces" / "manifest.json") and (run_dir / "summary.json").is_file():
        return Outcome(True, f"{run_dir}: traces and summary are complete", 0)
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
        return Outcome(True, f"{run_dir}: attempt {attempt} ended with exit code {final[0]}", final[0])
    if codes:
        sentence = f"{run_dir}: attempt {attempt} ended with exit code {codes[-1]}, which may be tried again"
        return Outcome(quiet, sentence + (", but nothing came after it" if quiet else ""), codes[-1])
    return Outcome(False, f"{run_dir}: attempt {attempt} is running")


def read_attempts(run_dir: Path) -> list[dict[str, Any]]:
    """The events of attempts.jsonl; what is no event, as a line that is only half written, is left out."""
    path = run_dir / "attempts.jsonl"
    if not path.is_file():
        return []
    text = path.read_bytes()
    found = (read_line(line) for line in text[: text.rfind(b"\n") + 1].splitlines())
    return [
        event
        for event in found
        if isinstance(event.get("attempt", 1), int)
        and (event.get("event") == "started" or isinstance(event.get("exit_code"), int))
    ]


def fingerprint(run_dir: Path) -> Fingerprint:
    """Changes whenever the trainer writes: on attempts, metrics, or a rank's own log."""
    files = [run_dir / "attempts.jsonl", run_dir / "metrics.jsonl", *sorted(run_dir.glob("ranks/*"))]
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def _is_complete(manifest: Path) -> bool:
    return manifest.is_file() and read_line(manifest.read_bytes()).get("complete") is True
