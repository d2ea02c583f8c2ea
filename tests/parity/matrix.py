"""The full table of cases, and the small one that is run on every change."""

from __future__ import annotations

from collections.abc import Hashable

from stratlab_spec.strategies import STRATEGIES as TABLE
from tests.covering import choose_cover
from tests.parity.cases import (
    FULLY_SHARD,
    SHARDS_PARAMETERS,
    STRATEGIES,
    VARIANTS,
    WORLD_SIZES,
    Case,
    cases_of,
)
from tests.parity.mutations import MUTATIONS
from tests.parity.suite import Matrix
from tests.parity.training import STEPS
from tests.parity_report import PARITY, PARITY_SMALL

ENGINES = {name: TABLE[name].file for name in STRATEGIES} | dict.fromkeys(SHARDS_PARAMETERS, "zero, stage 3")
"""Strategies of one engine differ in what they tell it; stage 3 is another engine than the first two."""
ENGINES |= dict.fromkeys(FULLY_SHARD, "fully_shard")


def traits_of(case: Case) -> set[Hashable]:
    """Pairs: of engine, strategy, model, number of ranks and variant; all pairs that there are lie in the full table.

    On one process most strategies have nothing to do: what they do there counts for the number alone. Four ranks of
    stage 3 are dear; what needs them has its own variants, which are taken once.
    """
    dear = set(VARIANTS[case.variant].only) <= set(SHARDS_PARAMETERS) and VARIANTS[case.variant].only
    traits: set[Hashable] = {(ENGINES[case.strategy], case.world_size)}
    if case.world_size > 1 or case.strategy == "single":
        traits |= {(ENGINES[case.strategy], case.variant), (case.strategy, case.model)}
        traits |= set() if dear else {(case.variant, case.world_size), (case.variant, case.model)}
    return traits


def cost_of(case: Case) -> float:
    """Processor time, roughly, as it was measured: every rank works."""
    of_strategy = {"fsdp": 3, "hsdp": 3, "zero3": 6, "zeropp": 7}.get(case.strategy, 1)
    return case.world_size * of_strategy * {"cnn": 0.7, "vit_tiny": 1.0}.get(case.model, 1.2)


_ALL = tuple(case for size in WORLD_SIZES for strategy in STRATEGIES for case in cases_of(strategy, size))
_SEEN = {fault.case for fault in MUTATIONS}  # that a fault is caught says something where the case holds
_EACH_CHANGE = [case for case in _ALL if not VARIANTS[case.variant].nightly]
FULL = Matrix("full", _ALL, PARITY, STEPS)
SMALL = Matrix("small", tuple(choose_cover(_EACH_CHANGE, traits_of, cost_of, _SEEN)), PARITY_SMALL, STEPS)
