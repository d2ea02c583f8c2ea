"""Read the progress of runs from their directories, never from their output, and show it on a terminal.

`Display` is a live line per run on a terminal, plain lines elsewhere; `SweepDisplay` the same per release of a sweep.
`build_lines` formats the answers that verbs print below their tables.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn
from rich.progress import Progress as Live
from rich.table import Table
from rich.text import Text

from stratlab.machine import GrowingWait

WINDOW = 50
PLAIN_INTERVAL_S = 5.0
SWEEP_INTERVAL_S = 30.0
PASSING_S = 5.0


@dataclass(frozen=True)
class Progress:
    """Hold the known progress; None for unknown values. `hardware` names the device of the measurements."""

    phase: str
    step: int = 0
    steps: int | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    eta_s: float | None = None
    hardware: str = ""

    def __str__(self) -> str:
        parts = [self.phase]
        if self.step:
            parts.append(f"step {self.step} of {self.steps}" if self.steps else f"step {self.step}")
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.samples_per_s is not None:
            parts.append(f"{self.samples_per_s:.0f} samples/s" + f" ({self.hardware})" * bool(self.hardware))
        if self.eta_s is not None:
            parts.append(f"{format_seconds(self.eta_s)} left")
        return ", ".join(parts)


def format_seconds(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def build_lines(answers: Iterable[tuple[str, str | Text]]) -> Table:
    """Format answers below a table, each with a bold label; "" = the label of the line before."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    for label, sentence in answers:
        grid.add_row(label, Text(sentence) if isinstance(sentence, str) else sentence)
    return grid


class RunReader:
    """Read new content of a run directory each time; skip content of an earlier attempt."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.offset = _size(run_dir / "metrics.jsonl")
        self.old_config = _modified(run_dir / "config.json")
        self.old_attempts = _size(run_dir / "attempts.jsonl")
        self.config: dict[str, Any] = {}
        self.records: deque[dict[str, Any]] = deque(maxlen=WINDOW)

    def read(self) -> Progress:
        """Return the run's present state."""
        # a further attempt keeps the config.json of the first one
        begun = _size(self.run_dir / "attempts.jsonl") > self.old_attempts
        if not self.config and (begun or _modified(self.run_dir / "config.json") != self.old_config):
            self.config = json.loads((self.run_dir / "config.json").read_bytes())
        self.records.extend(record for record in self._new_records() if record.get("kind") == "train")
        if not self.config:
            return Progress("starting")
        resolved = self.config.get("resolved", {})
        steps = resolved.get("steps")
        hardware = ", ".join(str(resolved[key]) for key in ("device_type", "backend") if resolved.get(key))
        if not self.records:
            return Progress("training", steps=steps, hardware=hardware)
        last = self.records[-1]
        finished = steps is not None and last["step"] >= steps
        return Progress(
            phase="evaluating" if finished else "training",
            step=last["step"],
            steps=steps,
            loss=last.get("loss"),
            samples_per_s=self._samples_per_s(),
            eta_s=None if finished or steps is None else self._eta_s(steps - last["step"]),
            hardware=hardware,
        )

    def _new_records(self) -> list[dict[str, Any]]:
        path = self.run_dir / "metrics.jsonl"
        if _size(path) <= self.offset:
            return []
        with path.open("rb") as file:
            file.seek(self.offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # the last line may be incomplete
        self.offset += len(whole)
        return [json.loads(line) for line in whole.splitlines() if line]

    def _samples_per_s(self) -> float | None:
        timed = [r for r in self.records if r.get("step_time_ms") and not r.get("profiled")]
        time_s = sum(r["step_time_ms"] for r in timed) / 1000
        return sum(r["samples"] for r in timed) / time_s if time_s else None

    def _eta_s(self, steps_left: int) -> float | None:
        first, last = self.records[0], self.records[-1]
        done = last["step"] - first["step"]
        return (last["t"] - first["t"]) / done * steps_left if done > 0 else None


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _modified(path: Path) -> int:
    return path.stat().st_mtime_ns if path.is_file() else 0


class Display:
    """Print permanent lines with `say`, and the current state of a run with `show`."""

    def __init__(self, console: Console, interval_s: float = PLAIN_INTERVAL_S) -> None:
        self.console = console
        self.interval_s = interval_s
        self.live: Live | None = None
        self.tasks: dict[str, TaskID] = {}
        self.shown: dict[str, tuple[str, int]] = {}
        self.waits: dict[str, GrowingWait] = {}
        self.since: dict[str, tuple[str, float]] = {}

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            name, state = TextColumn("{task.description}"), TextColumn("{task.fields[state]}")
            columns = (SpinnerColumn(), name, BarColumn(bar_width=20), state)
            self.live = Live(*columns, console=self.console, transient=True)
            self.live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self.live:
            self.live.stop()

    def say(self, text: str) -> None:
        """Print a line unchanged: without wrapping and markup."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, name: str, doing: Progress | str) -> None:
        """Update the run's live line.

        Elsewhere print a line when its phase changed, every 5 s while it steps, and ever more rarely without progress.
        """
        now, progress = time.monotonic(), Progress(doing) if isinstance(doing, str) else doing
        if self.since.get(name, ("", now))[0] != progress.phase:
            self.since[name] = (progress.phase, now)
        waited_s = now - self.since[name][1]
        text = str(progress)
        if progress.eta_s is None and waited_s >= 1:  # show that time passes, because no other value changes
            text += f", for {format_seconds(waited_s)}"
        if self.live:
            if name not in self.tasks:
                self.tasks[name] = self.live.add_task(escape(name), total=None, state="")
            task, done, total = self.tasks[name], progress.step, progress.steps
            self.live.update(task, completed=done, total=total, state=escape(text))
            return
        moved = (progress.phase, progress.step)
        is_new = self.shown.get(name, ("", 0))[0] != progress.phase
        if is_new or (self.shown[name] != moved and self.waits[name].is_least_over(now)):
            self.shown[name] = moved
            self.waits[name] = GrowingWait(now, self.interval_s)
            self.say(f"{name}: {text}")
        elif self.shown[name] == moved and self.waits[name].is_over(now):
            stands = f", at this step for {format_seconds(now - self.waits[name].began)}"
            self.say(f"{name}: {text}{stands if progress.eta_s is not None else ''}")

    def end(self, name: str, text: str) -> None:
        """Print the run's last line, which stays."""
        if self.live and name in self.tasks:
            self.live.remove_task(self.tasks.pop(name))
        self.shown.pop(name, None)
        self.since.pop(name, None)
        self.say(f"{name}: {text}")


class SweepDisplay(Display):
    """Show a sweep; its releases report their state in plain text."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, SWEEP_INTERVAL_S)
        self.told = time.monotonic()

    def print(self, table: Table) -> None:
        self.console.print(table)

    def pass_by(self, text: str) -> None:
        """Show the progress of a short operation, only every 5 s."""
        now = time.monotonic()
        if now - self.told >= PASSING_S:
            self.told = now
            self.say(text)
