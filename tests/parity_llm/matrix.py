"""The full table of cases and reshardings, and the small one that is run on every change."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import combinations

from tests.covering import choose_cover
from tests.parity.suite import Matrix
from tests.parity_llm.cases import CASES, LARGE, STEPS, Case
from tests.parity_llm.models import MODELS
from tests.parity_llm.mutations import MUTATIONS
from tests.parity_llm.resharding import RESHARDINGS, STATE_LOST
from tests.parity_report import PARITY_LLM, PARITY_LLM_SMALL


def axes_of(case: Case) -> set[str]:
    """The axes with more than one rank, and sp."""
    axes = {axis for axis, size in case.degrees.items() if size > 1}
    return axes | ({"sp"} if case.sequence_parallel else set())


def family_of(case: Case) -> str:
    return MODELS[case.model][0]


LIKE_ANOTHER = ("hsdp", "zeropp")
"""One model is enough: of images, and at night of decoders, they have all."""


def traits_of(case: Case) -> set[Hashable]:
    """Pairs that only it may show: a strategy or an axis with dense models or experts, two axes, a setting.

    What a strategy does with packing, teachers and varlen attention is seen in tests/parity or of one strategy; with
    axes each of them counts.
    """
    axes = axes_of(case)
    special = [name for name in ("packed", "varlen", "taught", "lora") if getattr(case, name)]
    return {
        (case.strategy, *([] if case.strategy in LIKE_ANOTHER else [family_of(case)])),
        ("micro-batches", case.micro > 0),
        ("routed alike", case.routed_alike, case.strategy == "nd"),
        *((name, axis) for name in special for axis in axes & {"cp", "pp", "tp"}),
        *((case.strategy == "nd", name, value) for name, value in case.settings.items()),
        *((axis, family_of(case)) for axis in axes),
        *combinations(sorted(axes), 2),
    }


def _without_twins(cases: list[Case]) -> tuple[Case, ...]:
    return tuple({case.name: case for case in cases}.values())


_SEEN = _without_twins([mutation.case for mutation in MUTATIONS])
"""That a fault is caught in a case says something where the case itself holds."""
_ALL = _without_twins([*CASES, *_SEEN])
_FEW = [case for case in _ALL if case.world_size <= 4]
_SMALL = choose_cover(_FEW, traits_of, lambda case: case.world_size, _SEEN)
FULL = Matrix("full", (*_ALL, *LARGE), PARITY_LLM, STEPS, RESHARDINGS)
SMALL = Matrix("small", tuple(_SMALL), PARITY_LLM_SMALL, STEPS, (STATE_LOST.pair,))
