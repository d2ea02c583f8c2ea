"""Shows a sweep: a live line per release on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console

from stratlab.progress.display import Display
from stratlab.progress.run_progress import Progress

if TYPE_CHECKING:
    from rich.table import Table

PLAIN_INTERVAL_S = 30.0
PASSING_S = 5.0


class SweepDisplay:
    """The display of a rehearsal, told in plain text."""

    def __init__(self, console: Console) -> None:
        self.display = Display(console, PLAIN_INTERVAL_S)
        self.began = time.monotonic()
        self.told = self.began

    def __enter__(self) -> SweepDisplay:
        self.display.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.display.__exit__(None, None, None)

    def say(self, text: str) -> None:
        self.display.say(text)

    def show(self, name: str, text: str) -> None:
        self.display.show(name, Progress(text))

    def end(self, name: str, text: str) -> None:
        self.display.end(name, text)

    def print(self, table: Table) -> None:
        self.display.console.print(table)

    def pass_by(self, text: str) -> None:
        """Progress of something short: told every 5 s only."""
        now = time.monotonic()
        if now - self.told >= PASSING_S:
            self.told = now
            self.say(text)
