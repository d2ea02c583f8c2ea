"""How faults are written; who may plant them: test_config.py."""

from __future__ import annotations

import re

import pytest

from stratlab_spec.settings.values import FAULTS, KINDS, Fault, rank_problems, read_faults
from tests.codes import find_codes
from trainer.fault_injection import APPLY


def test_faults_are_read():
    assert KINDS.keys() == APPLY.keys() and read_faults("") == []
    found = read_faults("kill@37:1,disk-full@5!")
    assert found == [Fault("kill", 37, 1, False), Fault("disk-full", 5, 0, True)]


@pytest.mark.parametrize("fault", ["explode@3", "kill@0", "kill@3:x", "kill@3,", "kill@3 ", "kill@3!!"])
def test_what_is_no_fault_is_refused(fault):
    assert not re.search(FAULTS, fault)


def test_a_rank_that_is_not_there_is_named():
    assert [*rank_problems("kill@3:1,nan@4", 2)] == []
    (said,) = rank_problems("kill@3:2", 2)
    assert find_codes(said) == ["SL-fault-rank"] and "rank 2" in said
