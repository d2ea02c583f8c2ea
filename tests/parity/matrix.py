"""The full table of cases, and the small one that is run on every change."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

from tests.covering import choose_cover
from tests.parity.cases import SHARDS_PARAMETERS, STRATEGIES, VARIANTS, WORLD_SIZES, Case, cases_of
from tests.parity.mutations import MUTATIONS
from tests.parity_report import PARITY, PARITY_SMALL


@dataclass(frozen=True)
class Matrix:
    """Cases to train, and the report they are written to."""

    name: str
    cases: tuple[Case, ...]
    report: Path

    def groups(self) -> list[tuple[str, int]]:
        """(strategy, world size) of its cases, each once."""
        return list(dict.fromkeys((case.strategy, case.world_size) for case in self.cases))

    def of(self, strategy: str, world_size: int) -> list[Case]:
        return [c for c in self.cases if (c.strategy, c.world_size) == (strategy, world_size)]


def traits_of(case: Case) -> set[Hashable]:
    """Every strategy meets every variant and model where ranks share the work, and every world size; so does a variant.

    On one process most strategies have nothing to do: what they do there counts for the world size alone. Every variant
    with every model is in the full table.
    """
    shown = ("strategy", case.strategy), ("variant", case.variant)
    traits = {(each, ("world size", case.world_size)) for each in shown}
    if case.world_size > 1 or case.strategy == "single":
        traits |= {shown, (("strategy", case.strategy), ("model", case.model))}
    return traits


def cost_of(case: Case) -> float:
    """Processor time, roughly: every rank works, and DeepSpeed's stage 3 has hooks at every module."""
    return case.world_size * (3 if case.strategy in SHARDS_PARAMETERS else 1)


_ALL = tuple(case for size in WORLD_SIZES for strategy in STRATEGIES for case in cases_of(strategy, size))
FULL = Matrix("full", _ALL, PARITY)
_SEEN = {
    mutation.case for mutation in MUTATIONS
}  # that a fault is caught says something where the case holds
_EACH_CHANGE = [case for case in _ALL if not VARIANTS[case.variant].nightly]
SMALL = Matrix("small", tuple(choose_cover(_EACH_CHANGE, traits_of, cost_of, _SEEN)), PARITY_SMALL)
