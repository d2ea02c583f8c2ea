"""The console lines of rank 0 that are an interface (trainer/outcome/progress.py, trainer/outcome/tracking.py):

step 120/600  loss 0.4321  812 samples/s  78.9 ms/step  about 38 s left
step 120: rank 1 (node a) takes 2.1 times as long as the others since step 103: they wait 51 % of each step
step 120: the loss of step 118 is not finite, first on rank 1 (node a); of these 10 steps 1 are so, 1 left out
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NUMBER = r"(-?[\d.]+(?:e[+-]?\d+)?|-?inf|nan)"
STEP = re.compile(
    rf"step (\d+)/(\d+)  loss {NUMBER}  {NUMBER} samples/s  {NUMBER} ms/step  about (\d+) s left\s*$"
)
EVENT = re.compile(r"step \d+: (?:rank \d+ .*takes .* times as long|the (?:loss|gradient) of step \d+ ).*$")
ATTEMPT = re.compile(r"attempt (\d+)\b")


@dataclass(frozen=True)
class Progress:
    """Where training is. `left_s` is the trainer's own estimate."""

    step: int
    steps: int
    loss: float
    samples_per_s: float
    step_time_ms: float
    left_s: int

    def __str__(self) -> str:
        return (
            f"step {self.step}/{self.steps}  loss {self.loss:.4f}  {self.samples_per_s:,.0f} samples/s"
            f"  {self.step_time_ms:.1f} ms/step  about {format_seconds(self.left_s)} left"
        )


def parse_progress(line: str) -> Progress | None:
    """None for any other line. An mpirun may put something in front."""
    found = STEP.search(line)
    if not found:
        return None
    step, steps, loss, speed, step_ms, left_s = found.groups()
    return Progress(int(step), int(steps), float(loss), float(speed), float(step_ms), int(left_s))


def parse_event(line: str) -> str | None:
    """A slow rank, or what is not finite, as the trainer says it; None for any other line."""
    found = EVENT.search(line)
    return found[0].rstrip() if found else None


def parse_attempt(line: str) -> int | None:
    """The attempt's number where the trainer says it ("demo: attempt 2, rank 0 of 4 on ...")."""
    found = ATTEMPT.search(line) if "rank 0 of" in line else None
    return int(found[1]) if found else None


def format_seconds(seconds: float) -> str:
    """38 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
