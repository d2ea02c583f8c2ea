"""Every mesh of the table of tests/trainer/wire_nd.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.parity_llm.cases import Case
from tests.parity_llm.models import write_models
from tests.ranks import run_ranks
from tests.trainer.wire_nd import CASES, check_formula, measure_all

OTHERS = (
    (Case("tied", strategy="ddp", world=2), {"dp_replicate"}),
    (Case("tied", strategy="fsdp", world=2), {"dp_shard"}),
    (Case("tied", strategy="zero2", world=2), {"dp_shard"}),
    (Case("tied", "rep2.dp2", strategy="hsdp"), {"dp_replicate", "dp_shard"}),
)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    run_ranks(lambda: write_models(folder), 1)
    return folder


@pytest.fixture(scope="module")
def measured(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("measured")
    measure_all([*CASES, *(case for case, _ in OTHERS)], checkpoints, out)
    return out


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_axis_sends_what_the_formula_says(case: Case, checkpoints: Path, measured: Path) -> None:
    check_formula(case, checkpoints, measured)


def test_the_other_strategies_have_axes_too(measured: Path) -> None:
    for case, axes in OTHERS:
        for rank in range(case.world_size):
            assert json.loads((measured / f"{case.name} {rank}.json").read_text()).keys() == axes, case.name
