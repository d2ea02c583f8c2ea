"""Every strategy is one process, in every variant, with every model, on 1, 2 and 4: tests/parity without a choice."""

from tests.parity.test_parity import test_a_planted_fault_is_caught, test_every_strategy_equals_one_process

__all__ = ["test_a_planted_fault_is_caught", "test_every_strategy_equals_one_process"]
