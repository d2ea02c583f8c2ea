"""Decoders under the strategies that `make test` leaves to tests/parity_llm."""

from __future__ import annotations

import pytest

from tests.trainer.strategies.ranks import test_text_models
from tests.trainer.strategies.ranks.test_text_models import compare_with_one_process

alone = test_text_models.alone


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero1", "zero2", "zero3"])
def test_a_decoder_trains_as_in_one_process(strategy, alone, tmp_path):
    compare_with_one_process(strategy, alone, tmp_path)
