"""The full table of cases and the small one of every change, trained once per session, each against its reference."""

from collections.abc import Hashable, Sequence
from functools import partial
from pathlib import Path

import pytest

from stratlab_spec.strategies import STRATEGIES as TABLE
from tests.covering import choose_cover
from tests.forks import Forks
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
from tests.parity.suite import DID_NOT_END, FLOOR, Difference, Found, Matrix
from tests.parity.training import STEPS, Training, train
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


def compare(run: Path, reference: Path) -> Difference:
    """Losses and norms absolutely, first-step gradients relative to each parameter's own norm.

    Gradients are read off weights, so equal ones can differ by one step of what fp32 can hold: 2.4e-7 at a LayerNorm's
    weight of 1 and a rate of 0.5, above the gate where the gradient is clipped. That much is taken off each element.
    """
    import torch

    if not run.exists():
        return DID_NOT_END
    ours, theirs = (torch.load(path, weights_only=True) for path in (run, reference))
    assert ours["gradients"].keys() == theirs["gradients"].keys()
    errors: dict[str, float] = {}
    if theirs["gradients"]:
        whole = torch.stack([g.norm() for g in theirs["gradients"].values()]).norm()
        assert whole > 0
        for name, gradient in theirs["gradients"].items():
            beyond = (ours["gradients"][name] - gradient).abs() - theirs["resolution"][name]
            errors[name] = float(beyond.clamp_min(0.0).norm() / (gradient.norm() + FLOOR * whole))
    worst = max(errors, key=lambda name: errors[name], default="")
    loss, norm = (_furthest(ours[name], theirs[name]) for name in ("losses", "norms"))
    return Difference(loss, norm, errors.get(worst), worst)


def _furthest(left: list[float], right: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(left, right, strict=True))


@pytest.fixture(scope="session")
def references(matrix: Matrix, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("references")
    wanted = sorted({case.reference() for case in matrix.cases}, key=lambda case: case.name)
    complaint = _forks([Training(case.name, case) for case in wanted], folder).complaint(1)
    assert not complaint, complaint
    return folder


@pytest.fixture(scope="session")
def trained(matrix: Matrix, references: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The matrix, and each fault in its case, taken back before the next: all of one world size in one fork."""
    out = tmp_path_factory.mktemp("trained")
    trainings = [Training(case.name, case) for case in matrix.cases]
    trainings += [Training(fault.name, fault.case, fault.plant) for fault in MUTATIONS]
    forks = _forks(trainings, out)

    def find(case: Case, name: str) -> tuple[Difference, str]:
        complaint = forks.complaint(case.world_size)
        return compare(out / f"{name}.pt", references / f"{case.reference().name}.pt"), complaint

    return find


def _forks(trainings: Sequence[Training], out: Path) -> Forks[Training]:
    return Forks(trainings, partial(train, out=out))
