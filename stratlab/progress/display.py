"""Shows a rehearsal: one live line per run on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn
from rich.progress import Progress as Live

from stratlab.progress.growing_wait import GrowingWait
from stratlab.progress.run_progress import Progress, format_seconds

PLAIN_INTERVAL_S = 5.0


class Display:
    """`say` prints a line that stays, `show` what a run is doing now."""

    def __init__(self, console: Console, interval_s: float = PLAIN_INTERVAL_S) -> None:
        self.console = console
        self.interval_s = interval_s
        self.live: Live | None = None
        self.tasks: dict[str, TaskID] = {}
        self.shown: dict[str, tuple[str, int]] = {}
        self.waits: dict[str, GrowingWait] = {}
        self.since: dict[str, tuple[str, float]] = {}

    def __enter__(self) -> Display:
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[state]}"),
            )
            self.live = Live(*columns, console=self.console, transient=True)
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()

    def say(self, text: str) -> None:
        """A line, as it is: never wrapped, nothing in it is markup."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, name: str, progress: Progress) -> None:
        """Updates the run's live line. Elsewhere prints one when its phase changed, every 5 s while it steps, and
        ever more rarely while nothing moves."""
        now = time.monotonic()
        if self.since.get(name, ("", now))[0] != progress.phase:
            self.since[name] = (progress.phase, now)
        waited_s = now - self.since[name][1]
        text = str(progress)
        if progress.eta_s is None and waited_s >= 1:  # nothing else moves: show that time does
            text += f", for {format_seconds(waited_s)}"
        if self.live:
            if name not in self.tasks:
                self.tasks[name] = self.live.add_task(escape(name), total=None, state="")
            self.live.update(
                self.tasks[name], completed=progress.step, total=progress.steps, state=escape(text)
            )
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
        """The run's last line, which stays."""
        if self.live and name in self.tasks:
            self.live.remove_task(self.tasks.pop(name))
        self.shown.pop(name, None)
        self.since.pop(name, None)
        self.say(f"{name}: {text}")
