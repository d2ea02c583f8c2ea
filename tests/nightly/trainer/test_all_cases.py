"""The cases of large tables of which `make test` takes one or two each."""

from __future__ import annotations

import pytest

from tests.trainer.counting.slow.test_clean_runs import RUNS, STRATEGIES, check_clean
from tests.trainer.counting.slow.test_host_memory import PLACES, check_offloaded
from tests.trainer.counting.slow.test_operations import CASES, check_scaled
from tests.trainer.counting.slow.test_state_bytes import DEPTHS, NUMBERS, check_foreseen
from tests.trainer.layout.slow.test_process_groups import LEAST_GROUPS, check_groups


@pytest.mark.parametrize("layers", DEPTHS)
@pytest.mark.parametrize("name", NUMBERS)
def test_foreseen_state_is_counted_state(name, layers, tmp_path):
    check_foreseen(name, layers, tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_scaled_is_what_is_counted_whole(case, tmp_path):
    check_scaled(case, tmp_path)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_clean_run_is_marked(strategy, tmp_path):
    check_clean(strategy, RUNS, tmp_path)


@pytest.mark.parametrize("name", LEAST_GROUPS)
def test_every_group_of_a_run_has_its_time_out(name, tmp_path):
    check_groups(name, tmp_path)


@pytest.mark.parametrize(("strategy", "offload"), PLACES[1:])
def test_state_leaves_the_device(strategy, offload, tmp_path):
    check_offloaded(strategy, offload, tmp_path)
