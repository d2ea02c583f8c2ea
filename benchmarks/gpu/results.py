"""The results on disk: one JSON object per line, there as soon as it is known.

    {"stage": "numerics", "item": "loss chunked", "status": "done", "seconds": 1.2, ...facts}
    {"stage": "numerics", "item": "end", "status": "passed", "done": 12, "failed": 0, "skipped": 0, ...}

Status of a measurement: `done`, `failed` (with error and where), `out_of_memory` (the card's answer, not a fault), or
`skipped` (with the reason). Of a stage's end: `passed` or `failed`, with the reasons.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

FILE = "results.jsonl"
END = "end"
MOST_FILES = 8
MOST_BYTES = 16 << 20
EXECUTED = ("done", "out_of_memory")

Line = dict[str, Any]


def clean(value: Any) -> Any:
    """What JSON can hold: floats with five digits, those that are not finite as text."""
    if isinstance(value, Mapping):
        return {str(key): clean(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [clean(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else str(value)
    return value if isinstance(value, str | int | bool) or value is None else str(value)


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """One write and one fsync: what is there stays there, and lines of several processes do not mix."""
    content = (json.dumps(clean(line)) + "\n").encode()
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, content)
        os.fsync(handle)
    finally:
        os.close(handle)


def read_lines(path: Path) -> list[Line]:
    """All whole lines; a torn last one, of a kill in the middle of a write, is left out."""
    found = []
    with suppress(OSError):
        for text in path.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                found.append(json.loads(text))
    return found


def build_end(
    stage: str,
    lines: Iterable[Line],
    *,
    exit_code: int | None,
    seconds: float,
    budget_s: float,
    gates_failed: Iterable[str] = (),
    killed: str = "",
) -> Line:
    """The line that closes a stage.

    Args:
        lines: what the stage has written.
        exit_code: of its process; None = it was ended from outside.
        killed: why it was.
    """
    statuses = [line.get("status") for line in lines]
    executed = sum(status in EXECUTED for status in statuses)
    failed = statuses.count("failed")
    reasons = [f"killed: {killed}"] if killed else []
    if exit_code not in (0, None):
        reasons.append(f"its process ended with {exit_code}")
    if failed:
        reasons.append(f"{failed} measurements failed")
    if executed == 0:
        reasons.append("executed nothing")
    reasons += [f"gate: {name}" for name in gates_failed]
    counts = {"done": executed, "failed": failed, "skipped": statuses.count("skipped")}
    status = "failed" if reasons else "passed"
    head = {"stage": stage, "item": END, "status": status, "reasons": reasons, **counts}
    return {**head, "seconds": seconds, "budget_s": budget_s, "exit": exit_code}


def find_oversize(folder: Path) -> list[str]:
    """What of a results folder would not come back: files over the limit on size or on number."""
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    found = [f"{f.name}: {f.stat().st_size >> 20} MiB" for f in files if f.stat().st_size >= MOST_BYTES]
    if len(files) > MOST_FILES:
        found.append(f"{len(files)} files, at most {MOST_FILES} come back")
    return found
