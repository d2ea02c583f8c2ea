"""Every mesh of the table of tests/trainer/wire_nd.py."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_every_axis_sends_what_the_formula_says(tmp_path: Path) -> None:
    """Of meshes with several axes; single ones: tests/trainer/ranks."""
    checkpoints, out = tmp_path / "checkpoints", tmp_path / "measured"
    checkpoints.mkdir()
    out.mkdir()
    run_ranks(lambda: write_models(checkpoints), 1)
    meshes = [case for case in CASES if len(case.degrees) > 1]
    measure_all([*meshes, *(case for case, _ in OTHERS)], checkpoints, out)
    for case in meshes:
        check_formula(case, checkpoints, out)
    for case, axes in OTHERS:
        for rank in range(case.world_size):
            assert json.loads((out / f"{case.name} {rank}.json").read_text()).keys() == axes, case.name
