"""What a run does about a number that is not finite, on one rank; of several: ranks/test_training_failures.py."""

import math
import re

import pytest
import torch

from stratlab_spec.exit_codes import NotFinite
from tests.codes import refuses
from trainer.metrics.training_failures import LONGEST_SKIP, Guard, Step

NAN = math.nan


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """One rank: torch's own answers without a process group."""
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group=None: 1)
    gather = lambda into, given, group: into.__setitem__(0, given)  # noqa: E731
    monkeypatch.setattr("torch.distributed.all_gather_object", gather)


def check(policy, *steps, scales_loss=False, shares=None):
    guard = Guard(policy, scales_loss, "node-7")
    return guard.check(steps, [torch.tensor(s) for s in shares or [step.loss for step in steps]])


GOOD, BAD = Step(7, 1.0, 1.0, False), Step(8, NAN, NAN, False)


def test_what_is_finite_asks_nobody(monkeypatch):
    monkeypatch.setattr("torch.distributed.all_gather_object", lambda *_, **__: pytest.fail("a collective"))
    for policy in ("stop", "skip", "warn"):
        assert check(policy, GOOD, GOOD) == []


@pytest.mark.parametrize(
    ("steps", "shares", "code", "named"),
    [
        ((GOOD, BAD), None, "SL-loss-not-finite", ("step 8 ", "rank 0 ", "node-7")),
        ((GOOD, Step(9, 1.0, math.inf, False)), None, "SL-gradient-not-finite", ("step 9 ",)),
        ((Step(9, 1.0, 1.0, True),), None, "SL-gradient-not-finite", ("step 9 ",)),
        ((Step(9, math.inf, 1.0, False),), [1.0], "SL-loss-sum-overflows", ("step 9 ",)),  # no rank's fault
    ],
)
def test_stop_names_step_rank_and_node(steps, shares, code, named):
    with refuses(NotFinite, code) as stopped:
        check("stop", *steps, shares=shares)
    assert all(word in str(stopped.value) for word in named)


def test_of_a_loss_scale_gradients_that_are_not_finite_are_no_fault():
    assert check("stop", Step(9, 1.0, math.inf, True), scales_loss=True) == []
    with pytest.raises(NotFinite):
        check("stop", BAD, scales_loss=True)


@pytest.mark.parametrize(("policy", "left_out"), [("warn", 0), ("skip", 1)])
def test_the_others_go_on_and_say_so(policy, left_out):
    (found,) = check(policy, GOOD, BAD)
    assert found[0] == 8
    assert "node-7" in found[1] and re.findall(r"\d+", found[1])[-1] == str(left_out)
    guard = Guard(policy, False, "")
    assert guard.found == 0
    guard.check([GOOD, BAD, BAD], [torch.tensor(1.0), torch.tensor(NAN), torch.tensor(NAN)])
    guard.check([GOOD], [torch.tensor(1.0)])
    assert guard.found == 2
    assert Guard(policy, False, "").counts_as_skipped(BAD) is bool(left_out)


def test_skipping_ends_where_it_does_not_help():
    guard = Guard("skip", False, "")
    steps = [Step(number, NAN, NAN, False) for number in range(1, LONGEST_SKIP + 1)]
    shares = [torch.tensor(NAN)] * LONGEST_SKIP
    guard.check(steps, shares)
    with refuses(NotFinite, "SL-skips-in-a-row", " 21"):
        guard.check([Step(21, NAN, NAN, False)], shares[:1])
    guard = Guard("skip", False, "")
    guard.check(steps, shares)
    guard.check([GOOD], [torch.tensor(1.0)])
    guard.check([Step(22, NAN, NAN, False)], shares[:1])
