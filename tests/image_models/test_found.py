"""The judging by hand: a run that is as it must be, and one fault at a time."""

import json
import math
from dataclasses import asdict, replace
from typing import Any

import pytest

from stratlab_spec.strategies import STRATEGIES
from tests.image_models import __main__ as command
from tests.image_models.cell import MODELS, Cell, list_cells
from tests.image_models.found import PARITY, Found, judge, measure_parity

CELL = Cell("mobilenet", "zero3")


def falling(first: int, last: int) -> dict[int, float]:
    return {step: 2.4 - 0.02 * step for step in range(first, last + 1)}


GOOD = Found(
    losses={1: falling(1, 40), 2: falling(21, 60)}, norms=(2.0, 1.0, 0.5, 0.5, 0.5), started_from=(0, 20), steps=60,
    largest=200_000, judged=(359, 359), validations=3, accuracy_pct=40.0,
)  # fmt: skip
EXACT = replace(GOOD, exact_losses=(2.4, 2.3, 2.2, 2.1, 2.0), exact_norms=(2.0, 1.0, 0.5, 0.5, 0.5))
WITHOUT_50 = {k: v for k, v in falling(21, 60).items() if k != 50}


def test_a_run_that_is_as_it_must_be():
    later = {"started_from": (0, 40), "losses": {1: falling(1, 40), 2: falling(41, 60)}}
    assert judge(CELL, GOOD, GOOD) == judge(CELL, replace(GOOD, **later), GOOD) == []


def test_every_network_under_every_strategy_is_a_cell_with_one_micro_batch():
    cells = list_cells()
    assert {(c.model, c.strategy) for c in cells} == {(m, s) for m in MODELS for s in {*STRATEGIES} - {"nd"}}
    for cell in cells:
        config = cell.config()
        together = config.batch_norm == "synchronised" or cell.model == "vgg"  # which has no batch norm
        seen = config.micro_batch_size * (cell.world_size if together else 1)
        assert seen == {"resnet": 16, "vgg": 32, "mobilenet_synchronised": 32}.get(cell.model, 8)
        assert config.global_batch_size % (config.micro_batch_size * cell.world_size) == 0
        assert config.steps >= 50 and cell.checkpoint_every < cell.killed_at < config.steps
        assert cell.threshold() == config.persistent_elements or config.strategy not in ("zero3", "zeropp")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": 40, "losses": {1: falling(1, 40)}}, "40 steps"),
        ({"losses": {1: falling(1, 40), 2: WITHOUT_50}}, "59"),
        ({"losses": {1: dict.fromkeys(range(1, 41), 2.3), 2: dict.fromkeys(range(21, 61), 2.3)}}, "2.3000"),
        ({"losses": {1: falling(1, 40), 2: falling(21, 60) | {60: math.nan}}}, "nan"),
        ({"judged": (358, 359)}, "358 of 359"),
        ({"judged": (0, 0)}, "0 of 0"),
        ({"validations": 1}, "1 validations"),
        ({"losses": {1: falling(1, 60)}, "started_from": (0,)}, "(0,)"),
        ({"losses": {1: falling(1, 40), 2: falling(1, 60)}, "started_from": (0, 0)}, "(0, 0)"),
        ({"losses": {1: falling(1, 40), 2: falling(21, 60) | {30: 1.9}}}, "another loss"),
        ({"losses": {1: falling(1, 40), 2: falling(25, 60)}}, "36 steps"),
        ({"largest": 100_000}, "100000"),
    ],
)
def test_a_fault_is_named(changes, said):
    complaints = judge(CELL, replace(GOOD, **changes), GOOD)
    assert any(said in complaint for complaint in complaints), complaints


@pytest.mark.parametrize(("by", "holds"), [(0.5 * PARITY, True), (2 * PARITY, False), (math.nan, False)])
def test_the_first_losses_and_norms_are_those_of_one_process(by, holds):
    changed = {1: falling(1, 40) | {3: falling(3, 3)[3] * (1 + by)}, 2: GOOD.losses[2]}
    assert (judge(CELL, replace(GOOD, losses=changed), GOOD) == []) is holds
    assert by != by or measure_parity(replace(GOOD, losses=changed), GOOD) == pytest.approx((by, 0.0))
    scaled = replace(GOOD, norms=tuple((1 + 10 * by) * norm for norm in GOOD.norms))
    assert (judge(CELL, scaled, GOOD) == []) is holds


def test_all_cells_leave_a_report_and_a_table(tmp_path, monkeypatch):
    fails = {"resnet ddp", "vgg single"}

    def run(cell: Cell) -> dict[str, Any]:
        if cell.name in fails:
            return {"failure": "rank 1 |\ndied", "seconds": 1.0}
        every, steps = cell.checkpoint_every, cell.steps
        good = replace(
            EXACT if cell.exact else GOOD, largest=2_000_000, steps=steps, started_from=(0, every),
            losses={1: falling(1, 2 * every), 2: falling(every + 1, steps)},
        )  # fmt: skip
        return json.loads(json.dumps({"found": asdict(good), "seconds": 2.0}))

    results = tmp_path / "raw" / "cells.json"
    monkeypatch.setattr(command, "run_cell", run)
    monkeypatch.setattr(command, "_read_tree", lambda: "one")
    assert command.main([], results) == 1
    report = json.loads((tmp_path / "raw" / "image-models.json").read_text())
    wrong = [(row["network"], row["strategy"]) for row in report["rows"] if not row["passed"]]
    assert len(report["rows"]) == 80 and report["as_they_must_be"] == 71 and len(wrong) == 9
    assert ("resnet", "ddp") in wrong and ("vgg", "zero3") in wrong, "nothing to compare it with"
    table = (tmp_path / "image-models.md").read_text().splitlines()
    assert table[0].startswith("71 of 80 cells as they must be") and len(table) == 4 + 80
    assert {line.count("|") for line in table[2:]} == {11}
    (ddp,) = (line for line in table if line.startswith("| resnet | ddp |"))
    assert ddp.endswith("| **not**: rank 1 / died |")
    fails.clear()
    assert command.main([], results) == 0, "what failed is done again, what lacked it is judged"
    table = (tmp_path / "image-models.md").read_text()
    assert table.startswith("80 of 80") and "| resnet | ddp | 2 | 60 | " in table
