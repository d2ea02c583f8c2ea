"""What the tests on a cluster call lost, late, doubled or changed, on lines that are made up; what an image gets."""

import ast
from typing import Any

import pytest

from tests.cluster.disturbed.deeds import DEEDS, Blow, measure_blows
from tests.cluster.disturbed.test_faults import STRATEGIES
from tests.cluster.e2e.test_image import CHOSEN
from tests.cluster.e2e.test_runs import FAULTS as DAILY
from tests.cluster.lab import ROOT
from tests.cluster.nightly.test_resume import FAULTS as NIGHTLY
from tests.cluster.resuming import compare_ends
from tests.faults.matrix import Fault

POD, PAUSED, SERVER = (Fault(number, "it happens", "kubectl", "goes on", ()) for number in ("K1", "K4", "K6"))
BLOWS = [
    Blow(POD, began=110.0, ready=110.0, restarts=True),
    Blow(PAUSED, began=210.0, ready=230.0, restarts=True),
    Blow(SERVER, began=310.0, ready=310.0, restarts=False),
]
STARTS = [
    {"attempt": n, "t": t, "from_step": step}
    for n, t, step in ((1, 100.0, 0), (2, 130.0, 10), (3, 250.0, 90))
]


def train(attempt: int, t: float, first: int, last: int) -> list[dict[str, Any]]:
    steps = enumerate(range(first, last + 1))
    return [
        {"kind": "train", "attempt": attempt, "step": step, "t": t + i, "loss": 1 / step} for i, step in steps
    ]


EVAL = {"kind": "eval", "attempt": 3, "t": 251.0, "step": 90}
LINES = [*train(1, 101, 1, 10), *train(2, 135, 11, 90), EVAL, *train(3, 255, 91, 170)]


def test_a_run_that_loses_nothing() -> None:
    costs = measure_blows(BLOWS, LINES, STARTS)
    assert [cost.problems for cost in costs] == [[], [], []]
    assert [cost.figures["seconds_to_recover"] for cost in costs] == [25.0, 25.0, 1.0]
    assert [cost.figures["steps_lost"] for cost in costs] == [0, 0, 0]


@pytest.mark.parametrize(
    ("starts", "lines", "index", "what"),
    [
        ([STARTS[0], STARTS[1] | {"from_step": 7}, STARTS[2]], LINES, 0, "lost"),
        (STARTS[:2], LINES[:90], 1, "attempts"),
        (STARTS, [*LINES[:90], *train(2, 231, 91, 95)], 1, "steps"),
        ([*STARTS, {"attempt": 4, "t": 320.0, "from_step": 170}], LINES, 2, "attempts"),
        (STARTS[:2], [*LINES[:10], *train(2, 230 + 1, 11, 90)], 0, "late"),
    ],
)
def test_what_is_lost_late_or_missing_is_seen(starts: Any, lines: Any, index: int, what: str) -> None:
    cost = measure_blows(BLOWS[:1] if what == "late" else BLOWS, lines, starts)[index]
    assert what in [problem.partition(":")[0] for problem in cost.problems]


STEPS, KEPT = 8, 4
ATTEMPTS = [{"attempt": 1, "from_step": 0}, {"attempt": 2, "from_step": KEPT}]
AGAIN = [*train(1, 0, 1, 6), {"kind": "eval", "attempt": 1}, *train(2, 0, KEPT + 1, STEPS)]
END: dict[str, Any] = {"steps": STEPS, "train_loss": 0.125, "validation_loss": 0.2, "test_loss": 0.3}
END |= dict.fromkeys(
    ("initial_weights_sha256", "data_order_sha256", "dtype_parameters", "dtype_optimizer"), "a"
)


def compare(starts: Any, lines: Any, **end: Any) -> float:
    return compare_ends(starts, lines, END | end, train(1, 0, 1, STEPS), END)


def test_equal_losses_pass_and_rounding_is_told() -> None:
    assert compare(ATTEMPTS, AGAIN) == 0.0
    assert compare(ATTEMPTS, AGAIN, test_loss=0.3 * (1 - 4e-7)) == pytest.approx(4e-7, rel=1e-3)


def test_every_strategy_is_disturbed_and_compared_with_a_run_of_the_same_settings() -> None:
    assert {fault.run.chart for fault in DAILY} == {"ddp", "zero2", "llm-2d"}
    assert {fault.run.chart for fault in NIGHTLY} == {"ddp", "fsdp", "zero1", "zero2", "zero3", "zeropp"}
    pairs = [(fault.run, fault.whole) for fault in (*DAILY, *NIGHTLY)]
    pairs += [(each.long, each.whole) for each in STRATEGIES]
    apart = {"run.config.comparison", "run.analysis.enabled", "run.resources.limits.memory"}
    apart.add("run.sharedMemory.sizeLimit")
    for pair in pairs:
        one, other = ({k: v for k, v in run.values.items() if k not in apart} for run in pair)
        assert one == other and one["run.config.checkpoint_every"] > 0
        assert pair[0].folder != pair[1].folder and pair[0].name != pair[1].name
    assert [deed.fault.number for deed in DEEDS] == [f"K{number}" for number in range(1, 8)]


def test_what_is_chosen_exists() -> None:
    for path, _, name in (chosen.partition("::") for chosen in CHOSEN):
        tree = ast.walk(ast.parse((ROOT / path).read_text()))
        assert not name or name in {f.name for f in tree if isinstance(f, ast.FunctionDef)}, (path, name)
