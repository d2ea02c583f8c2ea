"""Operations and bytes of a step of nd are the closed formula's, axis by axis, on every rank of real meshes.

All meshes: tests/nightly/trainer.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.parity_llm.cases import Case
from tests.parity_llm.models import write_models
from tests.ranks import run_ranks
from tests.trainer.wire_nd import SMALL, check_formula, measure_all

OTHERS = (
    (Case("tied", strategy="ddp", world=2), {"dp_replicate"}),
    (Case("tied", strategy="fsdp", world=2), {"dp_shard"}),
    (Case("tied", strategy="zero2", world=2), {"dp_shard"}),
    (Case("tied", strategy="zero3", world=2), {"dp_shard"}),
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
    measure_all([*SMALL, *(case for case, _ in OTHERS)], checkpoints, out)
    return out


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_every_axis_sends_what_the_formula_says(case: Case, checkpoints: Path, measured: Path) -> None:
    check_formula(case, checkpoints, measured)


def test_the_other_strategies_have_axes_too(measured: Path) -> None:
    for case, axes in OTHERS:
        for rank in range(case.world_size):
            assert json.loads((measured / f"{case.name} {rank}.json").read_text()).keys() == axes, case.name


def test_a_group_without_a_name_is_nobodys_axis() -> None:
    """The default group of a mesh with several axes is the world; a group's own description is its axis."""

    def call() -> None:
        import torch
        import torch.distributed as dist

        from trainer.layout.axes import Axes
        from trainer.measuring.wire import WireCounter

        dist.init_process_group("gloo")
        assert Axes(dp_shard=2).world_axis == "dp_shard" and Axes(tp=2, ep=2).world_axis == "tp"
        assert Axes(dp_shard=2, tp=2).world_axis == Axes().world_axis == "world"
        own = dist.new_group([0, 1], group_desc="tied")
        derived = dist.new_group([0, 1], group_desc="mesh_efsdp")
        with WireCounter() as wire:
            for group in (None, own, derived):
                dist.all_reduce(torch.ones(3), group=group)
        assert wire.axes == {axis: {"all_reduce": (1, 12)} for axis in ("world", "tied", "dp_shard")}
        assert wire.wire_bytes_per_axis == {"world": 12.0, "tied": 12.0, "dp_shard": 12.0}

    run_ranks(call, 2)
