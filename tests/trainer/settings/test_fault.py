"""How faults are written, and who may."""

from __future__ import annotations

import pytest

from tests.trainer.settings.test_config import problems, read
from trainer.faults import APPLY
from trainer.settings.fault import KINDS, Fault, rank_problems, read_faults, step_problems


def test_kinds_and_what_they_do_are_one_table():
    assert KINDS.keys() == APPLY.keys()


def test_faults_are_read():
    assert read_faults("") == []
    assert read_faults("kill@37:1,disk-full@5!") == [
        Fault("kill", 37, 1, False),
        Fault("disk-full", 5, 0, True),
    ]


@pytest.mark.parametrize(
    "fault",
    ["explode@3", "kill", "kill@0", "kill@3:", "kill@3:x", "kill@3,", "!kill@3", "kill@3 ", "kill@3!!"],
)
def test_what_is_no_fault_is_refused(fault):
    (said,) = problems(TRAINER_FAULT=fault, TRAINER_ALLOW_FAULTS="true")
    assert f"TRAINER_FAULT={fault!r}" in said and "disk-full" in said


def test_a_fault_needs_a_yes():
    (said,) = problems(TRAINER_FAULT="kill@3")
    assert "TRAINER_FAULT='kill@3'" in said and "run.allowFaults=true" in said
    assert read(TRAINER_FAULT="kill@3", TRAINER_ALLOW_FAULTS="true").fault == "kill@3"
    assert read().fault == "" and read(TRAINER_ALLOW_FAULTS="true").allow_faults


def test_a_rank_that_is_not_there_is_named():
    assert [*rank_problems("kill@3:1,nan@4", 2)] == []
    assert [*rank_problems("kill@3:2", 2)] == ["TRAINER_FAULT='kill@3:2': there is no rank 2, only 0 to 1"]


def test_a_step_that_never_comes_is_named():
    assert [*step_problems("kill@12:1,nan@4", 12)] == []
    assert [*step_problems("kill@13!,nan@4", 12)] == [
        "TRAINER_FAULT='kill@13!,nan@4': there is no step 13, only 1 to 12"
    ]
