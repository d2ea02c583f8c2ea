"""Faults are written as `kind@step[:rank][!]`, several with commas between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = {
    "kill": "the rank ends without a word (SIGKILL)",
    "hang": "the rank hangs without ending",
    "slow": "from here on each step of the rank takes twice as long",
    "nan": "the loss of the rank's samples is not a number, in this step",
    "oom": "the rank runs out of memory of its accelerator; on a CPU torch's error is raised",
    "disk-full": "from here on the rank cannot write more than 4 KiB into any file",
    "corrupt": "one bit of the newest committed checkpoint changes",
}
"""Kind -> what happens at the beginning of the step (trainer/fault_injection.py)."""
FAULT = rf"({'|'.join(KINDS)})@([1-9][0-9]{{0,8}})(:[0-9]{{1,6}})?!?"
FAULTS = rf"^({FAULT}(,{FAULT})*)?$"


@dataclass(frozen=True)
class Fault:
    """One fault of one rank.

    Attributes:
        every_attempt: it happens whenever the step is reached; else once in the run.
    """

    kind: str
    step: int
    rank: int
    every_attempt: bool

    @property
    def name(self) -> str:
        """As a file name."""
        return f"{self.kind}@{self.step}_{self.rank}"


def read_faults(text: str) -> list[Fault]:
    """Return the faults of the setting; rank 0's by default."""
    found = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(FAULT, part)
        assert match, part
        rank = int((match[3] or ":0")[1:])
        found.append(Fault(match[1], int(match[2]), rank, part.endswith("!")))
    return found


def fault_problems(text: str, allowed: bool) -> Iterator[str]:
    """Yield the reasons that forbid the setting."""
    if text and not allowed:
        yield (
            f"TRAINER_FAULT={text!r}: plants a fault in the run, which is allowed only with run.allowFaults=true "
            "(TRAINER_ALLOW_FAULTS=true without a chart) [SL-fault-not-allowed]"
        )


def rank_problems(text: str, world_size: int) -> Iterator[str]:
    """Yield faults of ranks that the run does not have."""
    for fault in read_faults(text):
        if fault.rank >= world_size:
            yield (
                f"TRAINER_FAULT={text!r}: there is no rank {fault.rank}, only 0 to {world_size - 1} "
                "[SL-fault-rank]"
            )


def step_problems(text: str, steps: int) -> Iterator[str]:
    """Yield faults of steps beyond the run's end: the run would end with 0, and show nothing."""
    for fault in read_faults(text):
        if fault.step > steps:
            yield f"TRAINER_FAULT={text!r}: there is no step {fault.step}, only 1 to {steps} [SL-fault-step]"
