"""The nightly matrix: every set of axes on each family of models, each number of processes, to 16, and each setting."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from itertools import product

import pytest

from tests.covering import choose_cover
from tests.parity_llm.cases import Case
from tests.parity_llm.fixtures import continued, folders, report, trained  # noqa: F401
from tests.parity_llm.matrix import FULL, Matrix, axes_of, family_of
from tests.parity_llm.resharding import STATE_LOST, Resharding


def traits_of(case: Case) -> set[Hashable]:
    mesh = ("mesh", tuple(sorted(axes_of(case))), family_of(case))
    return {
        mesh,
        ("world size", case.world_size),
        *((case.strategy, *each) for each in case.settings.items()),
    }


def traits_of_resharding(pair: Resharding) -> set[Hashable]:
    """Each axis that a checkpoint is cut along with each axis that it is read along."""
    axes = product(axes_of(pair.saved), axes_of(pair.continued))
    return {family_of(pair.saved), *axes}


CASES = choose_cover(FULL.cases, traits_of, lambda case: case.world_size)
RESHARDINGS = choose_cover(
    FULL.reshardings,
    traits_of_resharding,
    lambda pair: pair.saved.world_size + pair.continued.world_size,
    [STATE_LOST.pair],
)
MATRIX = replace(FULL, cases=tuple(CASES), reshardings=tuple(RESHARDINGS))


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    return MATRIX
