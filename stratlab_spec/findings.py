"""One line of a check: of a namespace and its pods (`stratlab check`), or of the ranks' hardware (`mode: check`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """The checked subject, its state, the observation, and a fix. A warning leaves the exit code at 0."""

    state: Literal["ok", "warning", "problem"]
    subject: str
    seen: str
    fix: str = ""

    def __str__(self) -> str:
        line = f"{self.state:<8} {self.subject}: {self.seen}"
        return f"{line}\n         -> {self.fix}" if self.fix else line
