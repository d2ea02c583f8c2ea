"""What the check says: one line per thing that was looked at, and the table of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

PROBLEM: Literal["problem"] = "problem"


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it is, what was seen, and what to do about it. A warning leaves the exit code at 0."""

    state: Literal["ok", "warning", "problem"]
    subject: str
    seen: str
    fix: str = ""


def describe(findings: Sequence[Finding]) -> str:
    """The table, with what to do below each line that asks for something."""
    width = max((len(finding.subject) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<8} {finding.subject:<{width}}  {finding.seen}")
        if finding.fix:
            lines.append(f"{'':8} {'':{width}}  -> {finding.fix}")
    found = {kind: sum(each.state == kind for each in findings) for kind in (PROBLEM, "warning")}
    counted = ", ".join(f"{number} {kind}{'' if number == 1 else 's'}" for kind, number in found.items())
    lines.append(counted if any(found.values()) else "nothing is missing")
    return "\n".join(lines)
