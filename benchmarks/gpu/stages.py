"""The stages of `make gpu`: their order, part, time and purpose.

A part fits into one command of nine minutes. The most valuable comes first. A stage's code is the module of its name,
with a function `run(session)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PART_LIMIT_S = 540


@dataclass(frozen=True)
class Stage:
    """One row of the table.

    Attributes:
        name: also the module, `benchmarks.gpu.<name>`.
        part: the command it belongs to, from 1.
        budget_s: its own time; unused time of the earlier stages is added.
        purpose: the decision that its figures support.
    """

    name: str
    part: int
    budget_s: float
    purpose: str


STAGES = (
    Stage("environment", 1, 40, "versions, the card, and which attention kernels it takes, by name"),
    Stage("numerics", 1, 50, "every attention and loss path against fp32"),
    Stage("ceilings", 1, 40, "GEMM, attention, copies and launches: the denominators of MFU"),
    Stage("project", 1, 360, "python -m trainer: each model on its own, and the strategies that matter most"),
    Stage("traces", 1, 45, "recorded steps through stratlab analyze and HTA"),
    Stage("strategies", 2, 350, "python -m trainer: the other strategies, and compiled blocks"),
    Stage("memory", 2, 180, "counted memory against the allocator's peak, many kinds of runs"),
    Stage("peers", 3, 300, "our step time over other trainers' step time, same module and batch"),
    Stage("ab", 3, 150, "one way against another: packing, loss, norms, optimizers, layouts, compile"),
    Stage("gloo", 4, 220, "two ranks on one device against one process"),
    Stage("quantizer", 4, 150, "ZeRO++'s kernel against its formula, and between two ranks"),
    Stage("capacity", 4, 150, "throughput and allocator retries as memory fills up"),
    Stage("stops", 5, 400, "out of memory, the ladder, SIGTERM, kill -9, checkpoints, as in docs/stops.md"),
)
PARTS = tuple(sorted({stage.part for stage in STAGES}))


class UnknownStage(ValueError):
    """A name or part that is not in the table; the text lists the known ones."""


def choose_stages(names: str = "", part: int | None = None) -> tuple[Stage, ...]:
    """Return the stages to run, in the table's order: the named ones (`numerics,ab`), else a part's, else all.

    Raises:
        UnknownStage: a name or a part that the table does not have, or both given.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if wanted and part is not None:
        raise UnknownStage(f"STAGES={names} and PART={part}: give one of the two [SL-gpu-stages-and-part]")
    known = [stage.name for stage in STAGES]
    if unknown := [name for name in wanted if name not in known]:
        raise UnknownStage(
            f"STAGES={','.join(unknown)}: not known; allowed: {', '.join(known)} [SL-gpu-stage-unknown]"
        )
    if part is not None and part not in PARTS:
        raise UnknownStage(
            f"PART={part}: not known; allowed: {', '.join(map(str, PARTS))} [SL-gpu-part-unknown]"
        )
    return tuple(s for s in STAGES if (s.name in wanted if wanted else part in (None, s.part)))


def share_time(stages: Sequence[Stage], left_s: float) -> float:
    """Return seconds for the first of `stages`: its budget and the remainder, without the time that later stages
    need.
    """
    later = sum(stage.budget_s for stage in stages[1:])
    return max(min(stages[0].budget_s, left_s), left_s - later)
