"""The input of a stage's code (device, sizes, time left), and its results on disk.

Results are one JSON object per line, written at once.

    {"stage": "numerics", "item": "loss chunked", "status": "done", "seconds": 1.2, ...facts}
    {"stage": "numerics", "item": "end", "status": "passed", "done": 12, "failed": 0, "skipped": 0, ...}

Status of a measurement: `done`, `failed` (with error and place), `out_of_memory` (the card's answer, not a fault), or
`skipped` (with the reason). Status of a stage's end: `passed` or `failed`, with the reasons.
"""

from __future__ import annotations

import json
import math
import os
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.gpu.measuring import free_memory

ROOT = Path(__file__).resolve().parents[2]
"""Root of the project, in a checkout and in the kit."""
FILE = "results.jsonl"
END = "end"
MOST_FILES = 8
MOST_BYTES = 16 << 20
EXECUTED = ("done", "out_of_memory")
Line = dict[str, Any]


class NotHere(Exception):
    """This version or device lacks the feature to measure; the text names it."""


@dataclass(frozen=True)
class Session:
    """One stage on one device.

    Attributes:
        device: `cuda` or `cpu`.
        tiny: small sizes everywhere: the code runs, the figures mean nothing.
        out: folder of the results: at most 8 files, each below 16 MiB.
        work: runs, caches and logs.
        deadline: `time.time()` at which the stage's time is over.
        scale: factor on every budget, for a slow machine.
        runs: names of runs (`vit_base:zero2+compile`) instead of a stage's own list, with commas; "" = its own.
    """

    stage: str
    device: str
    tiny: bool
    out: str
    work: str
    deadline: float
    scale: float = 1.0
    runs: str = ""

    @classmethod
    def from_json(cls, text: str) -> Session:
        """Return the session of `to_json`."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """Return the session for a process of this stage."""
        return json.dumps(asdict(self))

    @property
    def is_cuda(self) -> bool:
        return self.device == "cuda"

    @cached_property
    def work_folder(self) -> Path:
        return Path(self.work)

    @cached_property
    def out_folder(self) -> Path:
        return Path(self.out)

    def choose(self, own: tuple[str, ...]) -> tuple[str, ...]:
        """Return the requested runs, or else the stage's own."""
        return tuple(name.strip() for name in self.runs.split(",") if name.strip()) or own

    def left_s(self) -> float:
        """Return seconds until the stage's time is over."""
        return self.deadline - time.time()

    def within(self, most_s: float, kept_s: float = 1.0) -> float:
        """Return the seconds for one command: at most `most_s`, and `kept_s` less than the remaining ones."""
        return min(most_s * self.scale, self.left_s() - kept_s)

    def has_time(self, needs_s: float) -> bool:
        """Return whether a measurement of this duration still fits; the small sizes always take a second."""
        return self.left_s() >= (min(needs_s, 1.0) if self.tiny else needs_s)

    def record(self, item: str, status: str = "done", **facts: Any) -> None:
        """Write one result to disk, and to the stage's log."""
        line = {"stage": self.stage, "item": item, "status": status, **facts}
        append_line(self.out_folder / FILE, line)
        print(item, status, facts.get("error", ""), flush=True)

    def skip(self, item: str, needs_s: float) -> None:
        """Record a measurement that does not fit any more."""
        self.record(item, "skipped", reason=f"needs {needs_s:.0f} s, {self.left_s():.0f} s left")

    def measure(
        self, item: str, function: Callable[..., Mapping[str, Any]], *arguments: Any, needs_s: float = 3.0
    ) -> bool:
        """Write one measurement: its facts, or why there are not any. True if it worked."""
        if not self.has_time(needs_s):
            self.skip(item, needs_s)
            return False
        began = time.time()
        try:
            facts = function(*arguments)
        except NotHere as why:
            self.record(item, "skipped", reason=f"not here: {why}"[:400])
            return False
        except Exception as failure:  # an error of one measurement; the others continue
            if type(failure).__name__ == "OutOfMemoryError":
                self.record(item, "out_of_memory", error=str(failure)[:400], seconds=time.time() - began)
            else:
                where = traceback.format_exc().splitlines()[-7:]
                error = f"{type(failure).__name__}: {failure}"[:400]
                self.record(item, "failed", error=error, where=where, seconds=time.time() - began)
            return False
        finally:
            free_memory(self.is_cuda)
        self.record(item, seconds=time.time() - began, **facts)
        return True


def clean(value: Any) -> Any:
    """Return a value for JSON: floats with five digits, non-finite ones as text."""
    if isinstance(value, Mapping):
        return {str(key): clean(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [clean(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else str(value)
    return value if isinstance(value, str | int | bool) or value is None else str(value)


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append with one write and one fsync: earlier lines stay, and lines of several processes do not mix."""
    content = (json.dumps(clean(line)) + "\n").encode()
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, content)
        os.fsync(handle)
    finally:
        os.close(handle)


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
    """Return the line that closes a stage.

    Args:
        lines: of the stage.
        exit_code: of its process; None = it was ended from outside.
        killed: the reason for that.
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
    """Return problems of a results folder: files over the limit on size or on number."""
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    found = [f"{f.name}: {f.stat().st_size >> 20} MiB" for f in files if f.stat().st_size >= MOST_BYTES]
    if len(files) > MOST_FILES:
        found.append(f"{len(files)} files, at most {MOST_FILES} come back")
    return found
