"""The full table of cases and reshardings, and the small one that is run on every change."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from tests.covering import choose_cover
from tests.parity_llm.cases import CASES, LARGE, Case
from tests.parity_llm.models import MODELS
from tests.parity_llm.mutations import MUTATIONS
from tests.parity_llm.resharding import RESHARDINGS, STATE_LOST, Resharding
from tests.parity_report import PARITY_LLM, PARITY_LLM_SMALL


@dataclass(frozen=True)
class Matrix:
    """Cases to train, checkpoints to continue elsewhere, and the report they are written to."""

    name: str
    cases: tuple[Case, ...]
    reshardings: tuple[Resharding, ...]
    report: Path


def axes_of(case: Case) -> set[str]:
    """The axes with more than one rank, and sp."""
    axes = {axis for axis, size in case.degrees.items() if size > 1}
    return axes | ({"sp"} if case.sequence_parallel else set())


def family_of(case: Case) -> str:
    return MODELS[case.model][0]


def traits_of(case: Case) -> set[Hashable]:
    """What only it may show: a strategy or axis on dense models or experts, two axes at once, a setting, a size."""
    axes = axes_of(case)
    return {
        (case.strategy, family_of(case)),
        ("model", case.model),
        ("packed", case.packed),
        ("varlen", case.varlen and case.strategy),
        *(("varlen", axis) for axis in axes & {"cp", "pp", "tp"} if case.varlen),
        ("taught", case.taught and case.strategy),
        *(("taught", axis) for axis in axes & {"cp", "pp", "tp"} if case.taught),
        ("micro-batches", case.micro),
        (case.strategy, "routed alike", case.routed_alike),
        ("world size", case.world_size),
        ("dimensions", len(axes)),
        *((case.strategy, name, value) for name, value in case.settings.items()),
        *(("axis", axis, family_of(case)) for axis in axes),
        *combinations(sorted(axes), 2),
    }


def traits_of_resharding(pair: Resharding) -> set[Hashable]:
    """Whose model it is, and each axis that its checkpoint is cut along; the larger table is in the nightly suite."""
    return {family_of(pair.saved)} | {("saved", axis) for axis in axes_of(pair.saved)}


def _without_twins(cases: list[Case]) -> tuple[Case, ...]:
    return tuple({case.name: case for case in cases}.values())


_SEEN = _without_twins([mutation.case for mutation in MUTATIONS])
"""That a fault is caught in a case says something where the case itself holds."""
_ALL = _without_twins([*CASES, *_SEEN])
_SMALL = choose_cover(_ALL, traits_of, lambda case: case.world_size, _SEEN)
_FEW_RESHARDINGS = choose_cover(
    RESHARDINGS,
    traits_of_resharding,
    lambda pair: (
        pair.saved.world_size + 3 * pair.continued.world_size
    ),  # it builds, reads and has a fork of its own
    [STATE_LOST.pair],
)
FULL = Matrix("full", (*_ALL, *LARGE), RESHARDINGS, PARITY_LLM)
SMALL = Matrix("small", tuple(_SMALL), tuple(_FEW_RESHARDINGS), PARITY_LLM_SMALL)
