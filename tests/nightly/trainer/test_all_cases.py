"""The cases of large tables of which the slow tier takes one each."""

from __future__ import annotations

import pytest

from tests.trainer.counting.slow.test_operations import CASES, check_scaled
from tests.trainer.layout.slow.test_process_groups import LEAST_GROUPS, check_groups


@pytest.mark.parametrize("case", CASES)
def test_scaled_is_what_is_counted_whole(case, tmp_path):
    check_scaled(case, tmp_path)


@pytest.mark.parametrize("name", LEAST_GROUPS)
def test_every_group_of_a_run_has_its_time_out(name, tmp_path):
    check_groups(name, tmp_path)
