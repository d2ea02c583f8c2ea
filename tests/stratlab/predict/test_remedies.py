"""What is proposed where a run will not fit; a strategy only where it holds less than this one."""

from __future__ import annotations

from typing import Any

import pytest

from stratlab.predict.extrapolation import Peak
from stratlab.predict.remedies import advise
from stratlab.tables.strategies import STRATEGIES

GIB = 2**30


def ask(mostly: str, rows: int = 4, largest: int = 0, **settings: Any) -> str:
    """Advice where one cause holds nearly everything."""
    causes = {"parameters": GIB, "activations": GIB, "logits and loss": GIB} | {mostly: 50 * GIB}
    given = {"strategy": "ddp", "activation_checkpointing": "none", "loss_chunk_tokens": 2048, "lora_rank": 0}
    return advise(given | settings, Peak("forward", 0, causes), rows, largest)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_is_proposed_where_it_divides_as_much_or_more(strategy: str) -> None:
    told = ask("optimizer state", strategy=strategy)
    divided = STRATEGIES[strategy]["holds"]["divided"]
    if told.startswith("strategy="):
        less = told.partition("=")[2].partition(":")[0]
        assert less != strategy and set(divided) <= set(STRATEGIES[less]["holds"]["divided"])
        assert divided or STRATEGIES[less]["holds"]["divided"], "whole state is no less"
    elif divided:
        assert told.startswith("more ranks, which share out the state")
    else:
        assert told.startswith("a strategy that shares out"), "ddp holds what single holds"


def test_what_holds_most_is_changed_first() -> None:
    assert ask("activations").startswith("activation_checkpointing=blocks")
    assert ask("activations", activation_checkpointing="blocks", loss_chunk_tokens=512).startswith(
        "strategy=zero1"
    )
    assert ask("logits and loss").startswith("loss_chunk_tokens=512")
    assert ask("parameters", rows=4, largest=2) == "micro_batch_size=2 fits at the same global batch"
    assert ask("parameters", strategy="fsdp", lora_rank=8).startswith("activation_checkpointing=blocks")
