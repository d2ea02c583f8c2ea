"""What is proposed where a run will not fit; a strategy only where it holds less than this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from stratlab.predict.device_memory import Device, Verdict
from stratlab.predict.extrapolation import Peak
from stratlab.predict.operations_file import SHIPPED, read_operations_file
from stratlab.predict.prediction import Prediction
from stratlab.predict.question import Question
from stratlab.predict.remedies import advise
from stratlab.tables.strategies import STRATEGIES

GIB = 2**30


def ask(
    mostly: str,
    largest: int = 0,
    others: Mapping[str, int] | None = None,
    device_gib: float = 80.0,
    rows: int = 4,
    global_batch: int = 64,
    at_one_row: str = "",
    **settings: Any,
) -> str:
    """Advice where one cause holds nearly everything, with one row maybe another one, on 8 ranks."""
    causes = {"parameters": GIB, "activations": GIB, "logits and loss": GIB} | {mostly: 50 * GIB}
    given = {"strategy": "ddp", "activation_checkpointing": "none", "loss_chunk_tokens": 2048, "lora_rank": 0}
    file = read_operations_file(SHIPPED / "vit_huge-ddp-8.json")
    file = replace(file, settings=given | settings, axes={"dp_replicate": 8})
    question = Question("x", {}, ranks=8, per_node=8, rows=rows, global_batch=global_batch)
    peak, smallest = Peak("forward", 0, causes), Peak("forward", 0, causes)
    if at_one_row:
        smallest = Peak("forward", 0, {"parameters": GIB, "activations": GIB, at_one_row: 50 * GIB})
    nothing = Peak("host", 0, {})
    one = Prediction(question, file, Device(device_gib, 1), peak, nothing, smallest, Verdict.NOT, largest)
    return advise(one, others or {})


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
    assert ask("parameters", largest=2) == "micro_batch_size=2 fits at the same global batch"
    assert ask("parameters", strategy="fsdp", lora_rank=8).startswith("activation_checkpointing=blocks")


@pytest.mark.parametrize(
    ("rows", "global_batch", "largest", "proposed"),
    [(64, 0, 31, 16), (64, 1024, 31, 16), (32, 8 * 24, 20, 12), (7, 0, 6, 1), (10**9, 64, 1 << 16, 8)],
)
def test_a_proposed_micro_batch_makes_the_same_step(
    rows: int, global_batch: int, largest: int, proposed: int
) -> None:
    """On 8 ranks; where no global batch is given, of any that the run's own micro-batch divides."""
    told = ask("activations", largest, rows=rows, global_batch=global_batch)
    assert told == f"micro_batch_size={proposed} fits at the same global batch"


def test_no_setting_is_proposed_that_cannot_make_it_fit() -> None:
    assert ask("activations", device_gib=3).startswith("strategy=zero1"), "the state alone is too much"
    assert ask("activations", at_one_row="parameters").startswith("strategy=zero1"), (
        "fewer rows are not enough"
    )
    told = ask("activations", device_gib=1.9, others={"zero1": 0})
    assert told.startswith("no setting makes it fit: CUDA's context and communicators take 1.73 GiB")


def test_a_strategy_that_is_known_not_to_fit_is_not_proposed() -> None:
    told = ask("optimizer state", others={"zero1": 0, "zero2": 0, "zero3": 0, "fsdp": 2, "hsdp": 0})
    assert told.startswith("strategy=fsdp: ") and told.endswith("fits with micro_batch_size up to 2")
    assert ask("optimizer state", others={"zero1": 0, "zero3": 1}).startswith("strategy=zero3: ")
    assert ask("optimizer state", others={"zero1": 0}).startswith("strategy=zero2: "), "nobody knows"
    nothing = ask("optimizer state", others=dict.fromkeys(STRATEGIES, 0))
    assert "strategy=" not in nothing
