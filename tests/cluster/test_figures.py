"""What counts as lost, late or doubled in the table of faults on a cluster, on lines that are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.disturbed.deeds import DEEDS, FULL
from tests.cluster.disturbed.record import EXPECTED, Record
from tests.cluster.disturbed.runs import STRATEGIES
from tests.cluster.disturbed.test_faults import blame, names_limit_and_use
from tests.cluster.figures import LONGEST_S, Blow, Cost, measure_blows, share_points, write_row
from tests.faults.matrix import FIGURES, Fault
from tests.faults.outcome import write_table

POD = Fault("K1", "a pod is deleted", "kubectl", "goes on", ())
PAUSED = Fault("K4", "suspended", "helm", "goes on", ())
SERVER = Fault("K6", "MLflow is lost", "kubectl", "is not noticed", ())
BLOWS = [
    Blow(POD, began=110.0, ready=110.0, restarts=True),
    Blow(PAUSED, began=210.0, ready=230.0, restarts=True),
    Blow(SERVER, began=310.0, ready=310.0, restarts=False),
]
STARTS = [
    {"attempt": 1, "t": 100.0, "from_step": 0},
    {"attempt": 2, "t": 130.0, "from_step": 10},
    {"attempt": 3, "t": 250.0, "from_step": 90},
]


def train(attempt: int, t: float, first: int, last: int) -> list[dict[str, Any]]:
    """A step per second."""
    made = enumerate(range(first, last + 1))
    return [{"kind": "train", "attempt": attempt, "step": s, "t": t + i} for i, s in made]


LINES = [
    *train(1, 101, 1, 10),
    *train(2, 135, 11, 90),
    {"kind": "eval", "attempt": 3, "t": 251.0, "step": 90},
]
LINES += train(3, 255, 91, 170)


def test_a_run_that_loses_nothing() -> None:
    costs = measure_blows(BLOWS, LINES, STARTS)
    assert [cost.problems for cost in costs] == [[], [], []]
    assert [cost.figures["seconds_to_recover"] for cost in costs] == [25.0, 25.0, 1.0]
    assert [cost.figures["steps_lost"] for cost in costs] == [0, 0, 0]


@pytest.mark.parametrize(
    ("starts", "lines", "index", "sentence"),
    [
        ([STARTS[0], STARTS[1] | {"from_step": 7}, STARTS[2]], LINES, 0, "3 steps lost, at most 0 are allowed"),
        (
            [*STARTS[:2], {"attempt": 3, "t": 215.0, "from_step": 88}, {"attempt": 4, "t": 250.0, "from_step": 85}],
            [*LINES[:90], *train(3, 216, 89, 89), *train(4, 255, 86, 170)], 1, "6 steps lost",
        ),
        (STARTS[:2], LINES[:90], 1, "no attempt came after it"),
        (STARTS, LINES[:90], 1, "no step came after it"),
        (STARTS, [*LINES[:90], *train(2, 231, 91, 95)], 1, "no step came after it"),
        ([*STARTS, {"attempt": 4, "t": 320.0, "from_step": 170}], LINES, 2, "1 attempts came after it"),
        (STARTS, [*LINES[:10], *train(2, 110 + LONGEST_S + 1, 11, 90)], 0, "more than 120 s after it"),
        (STARTS[1:], LINES, 0, "it came before the first attempt"),
    ],
)  # fmt: skip
def test_what_is_lost_late_or_missing_is_seen(starts: Any, lines: Any, index: int, sentence: str) -> None:
    blows = BLOWS if "more than" not in sentence else BLOWS[:1]
    cost = measure_blows(blows, lines, starts)[index]
    assert any(sentence in problem for problem in cost.problems), cost


def test_steps_since_the_last_checkpoint_may_be_lost_and_no_more() -> None:
    starts = [STARTS[0], STARTS[1] | {"from_step": 5}]
    allowed = Blow(POD, 110.0, 110.0, restarts=True, most_lost=5)
    assert measure_blows([allowed], LINES[:90], starts)[0].problems == []
    less = Blow(POD, 110.0, 110.0, restarts=True, most_lost=4)
    assert measure_blows([less], LINES[:90], starts)[0].problems == ["5 steps lost, at most 4 are allowed"]


def test_points_belong_to_the_fault_before_them() -> None:
    costs = [Cost(), Cost(), Cost()]
    share_points(costs, BLOWS, lost=[105.0, 120.0, 400.0], doubled=[215.0])
    assert [cost.figures for cost in costs] == [
        {"points_lost": 2, "points_doubled": 0},
        {"points_lost": 0, "points_doubled": 1},
        {"points_lost": 1, "points_doubled": 0},
    ]
    assert [cost.problems for cost in costs] == [["2 points lost"], ["1 points doubled"], ["1 points lost"]]


def test_a_row_is_one_of_the_table_of_faults() -> None:
    bad = Cost({"seconds_to_recover": 25.0, "steps_lost": 3}, ["3 steps lost"])
    good = Cost({name: 0 for name in FIGURES})
    table = write_table([write_row("ddp", POD, bad), write_row("nd", POD, good)])
    assert (
        "| K1 ddp | a pod is deleted | kubectl | goes on | **failed**: 3 steps lost | 25.0 | 3 |  |  |"
        in table
    )
    assert "| K1 nd | a pod is deleted | kubectl | goes on | passed (1) | 0 | 0 | 0 | 0 |" in table


def test_the_table_is_written_once_all_rows_are_there(tmp_path: Path) -> None:
    record = Record(tmp_path / "found.json", tmp_path / "table.md", expected=2)
    record.add([write_row("ddp", POD, Cost())], {"strategy": "ddp"})
    assert len(json.loads((tmp_path / "found.json").read_text())["faults"]) == 1
    assert not (tmp_path / "table.md").exists()
    record.add([write_row("nd", POD, Cost())], {"strategy": "nd"})
    assert "K1 ddp" in (tmp_path / "table.md").read_text() and len(record.runs) == 2


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("rank 1: killed; 2.00 GiB are allowed, it used 2.00 GiB at most; raise", 137, True),
        ("rank 1: killed; 2.00 GiB are allowed, its highest use is not known", 137, False),
        ("rank 1: killed", 137, False),
        ("2.00 GiB are allowed, it used 2.00 GiB", 134, False),
    ],
)
def test_limit_and_use_must_both_be_said(text: str, code: int, says: bool) -> None:
    assert names_limit_and_use({"event": "ended", "exit_code": code, "text": text}) is says
    assert not names_limit_and_use({"event": "started"})


def test_a_run_that_did_not_survive_fails_every_row_and_names_the_cause_once() -> None:
    costs = blame(2, "no pod answers")
    said = [problem for cost in costs for problem in cost.problems]
    assert said == ["the run did not come to its end"] * 2 + ["no pod answers"] + ["not reached"] * 4
    assert [cost.problems for cost in blame(7, "losses")] == [["the run did not come to its end"]] * 7


def test_every_fault_is_there_for_every_strategy() -> None:
    assert [each.name for each in STRATEGIES] == ["ddp", "zero2", "fsdp", "nd", "mpijob"]
    assert [deed.fault.number for deed in DEEDS] + [FULL.number] == [f"K{n}" for n in range(1, 9)]
    assert EXPECTED == 40
    for each in STRATEGIES:
        assert each.whole.folder != each.long.folder
        apart = {name: each.long.values[name] for name in each.long.values if name not in each.run.values}
        assert set(apart) == {"run.resources.limits.memory", "run.sharedMemory.sizeLimit"}, (
            "no setting of a run"
        )
