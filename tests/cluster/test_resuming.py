"""What the tests of resumed runs on a cluster call a success, on lines that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.e2e.test_runs import FAULTS as DAILY
from tests.cluster.nightly.test_resume import FAULTS as NIGHTLY
from tests.cluster.resuming import compare_ends

STEPS, LOST, KEPT = 8, 6, 4


def train(attempt: int, first: int, last: int) -> list[dict[str, Any]]:
    steps = range(first, last + 1)
    return [{"kind": "train", "attempt": attempt, "step": step, "loss": 1.0 / step} for step in steps]


def summary(**changed: Any) -> dict[str, Any]:
    found = {"steps": STEPS, "initial_weights_sha256": "a", "data_order_sha256": "b"}
    found |= {"dtype_parameters": ["float32"], "dtype_optimizer": ["float32"]}
    return found | {"train_loss": 0.125, "validation_loss": 0.2, "test_loss": 0.3} | changed


STARTS = [{"attempt": 1, "from_step": 0}, {"attempt": 2, "from_step": KEPT}]
LINES = [*train(1, 1, LOST), {"kind": "eval", "attempt": 1}, *train(2, KEPT + 1, STEPS)]
WHOLE = train(1, 1, STEPS)


def test_equal_losses_pass_and_rounding_is_told() -> None:
    assert compare_ends(STARTS, LINES, summary(), WHOLE, summary()) == 0.0
    found = compare_ends(STARTS, LINES, summary(test_loss=0.3 * (1 - 4e-7)), WHOLE, summary())
    assert found == pytest.approx(4e-7, rel=1e-3)


@pytest.mark.parametrize(
    ("starts", "lines", "end", "sentence"),
    [
        (STARTS[:1], LINES, {}, "it was never started again"),
        ([STARTS[0], {"attempt": 2, "from_step": 0}], LINES, {}, "did not go on from a checkpoint"),
        (STARTS, [*train(1, 1, LOST), *train(2, KEPT + 2, STEPS)], {}, r"the last attempt has \[6, 7, 8\]"),
        (STARTS, [*LINES[:-1], LINES[-1] | {"loss": 0.1251}], {}, "losses differ by 0.0008"),
        (STARTS, [LINES[0] | {"loss": 1.1}, *LINES[1:]], {}, "losses differ by 0.091"),
        (STARTS, LINES, {"validation_loss": 0.21}, "losses differ by 0.048"),
        (STARTS, LINES, {"data_order_sha256": "c"}, "data_order_sha256"),
    ],
)
def test_what_was_lost_or_changed_is_seen(starts: Any, lines: Any, end: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        compare_ends(starts, lines, summary(**end), WHOLE, summary())


def test_every_strategy_that_keeps_state_is_disturbed_on_a_cluster() -> None:
    charts = {fault.run.chart for fault in (*DAILY, *NIGHTLY)}
    assert charts == {"ddp", "fsdp", "zero1", "zero2", "zero3", "zeropp", "llm-2d"}
    assert {fault.run.chart for fault in DAILY} == {"ddp", "zero2", "llm-2d"}
    assert {fault.run.resource.split(".")[0] for fault in NIGHTLY} == {"pytorchjobs", "mpijobs"}


@pytest.mark.parametrize("fault", (*DAILY, *NIGHTLY), ids=lambda fault: fault.run.name)
def test_both_runs_of_a_pair_have_the_same_settings(fault: Any) -> None:
    apart = {"run.config.comparison", "run.analysis.enabled"}
    one, other = ({k: v for k, v in run.values.items() if k not in apart} for run in (fault.run, fault.whole))
    assert one == other and one["run.config.checkpoint_every"] > 0
    assert fault.run.folder != fault.whole.folder and fault.run.name != fault.whole.name
