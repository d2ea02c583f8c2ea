"""What is proposed where a run will not fit: a run that fits, with what it takes; never one that is known not to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from stratlab.predict.answering import complete, look_up
from stratlab.predict.device_memory import Device, Verdict
from stratlab.predict.extrapolation import Peak
from stratlab.predict.operations_file import SHIPPED, OperationsFile, read_operations, read_operations_file
from stratlab.predict.prediction import Prediction, predict
from stratlab.predict.question import Question
from stratlab.predict.remedies import NOT_COUNTED, advise
from stratlab.predict.runs_to_try import ALLOWED, WHY, list_candidates
from stratlab.tables.strategies import STRATEGIES

GIB = 2**30
SETTINGS = {"strategy": "ddp", "activation_checkpointing": "none", "loss_chunk_tokens": 2048, "lora_rank": 0}
Known = Mapping[str, int]
"""Settings that differ, as the options take them -> the largest micro-batch that fits."""


def build(
    question: Question, settings: Mapping[str, Any], peak: Peak, largest: int, gib: float
) -> Prediction:
    file = read_operations_file(SHIPPED / "vit_huge-ddp-8.json")
    file = replace(file, settings={**SETTINGS, **settings}, axes={"dp_replicate": question.ranks})
    verdict = Verdict.FITS if largest >= question.rows else Verdict.NOT
    nothing = Peak("host", 0, {})
    return Prediction(question, file, Device(gib, 1), peak, nothing, peak, verdict, largest)


def ask(
    mostly: str,
    known: Known | None = None,
    *,
    largest: int = 0,
    device_gib: float = 80.0,
    rows: int = 4,
    global_batch: int = 64,
    at_one_row: str = "",
    allowed: Sequence[str] = (),
    idle: list[str] | None = None,
    **settings: Any,
) -> str:
    """Advice on 8 ranks where one cause holds nearly everything, with one row maybe another one.

    Args:
        idle: takes the names of what was allowed in vain.
    """
    causes = {"parameters": GIB, "activations": GIB, "logits and loss": GIB} | {mostly: 50 * GIB}
    given = {"model": "qwen2.5-3b", "strategy": settings.get("strategy", "ddp")}
    asked = Question("x", given, 8, 8, rows, global_batch, whole=False)
    one = build(asked, settings, Peak("forward", 0, causes), largest, device_gib)
    if at_one_row:
        less = {"parameters": GIB, "activations": GIB, at_one_row: 50 * GIB}
        one = replace(one, smallest=Peak("forward", 0, less))

    def look(question: Question) -> Prediction | None:
        changed = [
            f"{name}={text}" for name, text in question.settings.items() if asked.settings.get(name) != text
        ]
        key = " ".join([f"{question.ranks} GPUs"] * (question.ranks != 8) + changed)
        if known is None or key not in known:
            return None
        return build(question, {}, Peak("forward", 0, {"parameters": 10 * GIB}), known[key], device_gib)

    if idle is not None:
        one = complete(one, look, allowed)
        idle += [name for name, _ in one.idle]
        return one.advice
    return advise(one, look, allowed)


BLOCKS, CHUNK = "activation_checkpointing=blocks", "loss_chunk_tokens=512"
LORA = "lora_rank=16, init=pretrained"


@pytest.mark.parametrize(
    ("known", "first"),
    [
        ({BLOCKS: 8, CHUNK: 8, "strategy=zero1": 8, "16 GPUs": 8}, BLOCKS),
        ({BLOCKS: 0, CHUNK: 8, "strategy=zero1": 8}, CHUNK),
        ({BLOCKS: 0, CHUNK: 0, f"{BLOCKS} {CHUNK}": 8, "strategy=zero1": 8}, f"{BLOCKS}, {CHUNK}"),
        ({"strategy=zero2": 8, "strategy=zero1": 8, f"strategy=fsdp {BLOCKS}": 8}, "strategy=zero1"),
        ({"strategy=zero1": 0, f"strategy=fsdp {BLOCKS}": 8, "16 GPUs": 8}, f"strategy=fsdp, {BLOCKS}"),
        ({"strategy=nd dimensions=2": 8, "16 GPUs": 8}, "strategy=nd, dimensions=2"),
        ({"16 GPUs": 0, "32 GPUs": 8, "64 GPUs": 8}, "32 GPUs"),
        ({BLOCKS: 2, "strategy=zero1": 8}, f"{BLOCKS}, micro_batch_size=2"),
    ],
)
def test_what_is_known_to_fit_is_named_in_order(known: Known, first: str) -> None:
    told = ask("activations", known)
    assert re.fullmatch(rf"{re.escape(first)} fits, \d+\.\d\d of 80 GiB", told), told


def test_what_changes_the_result_or_costs_time_is_proposed_where_the_user_allows_it() -> None:
    known = {LORA.replace(",", ""): 8, "offload=all": 8, "strategy=zero3": 8}
    assert ask("optimizer state", known, strategy="fsdp").startswith("strategy=zero3 fits")
    assert ask("optimizer state", known, strategy="fsdp", allowed=["lora"]).startswith(f"{LORA} fits")
    assert ask("optimizer state", known, strategy="fsdp", allowed=["offload"]).startswith("offload=all fits")
    assert "lora" not in ask("optimizer state", strategy="fsdp") and "offload" not in ask("optimizer state")
    assert "offload" not in ask("optimizer state", {"offload=all": 8}, allowed=ALLOWED), "not of ddp"


@pytest.mark.parametrize(
    ("known", "largest", "idle"),
    [
        ({"lora_rank=16 init=pretrained": 8}, 0, ["offload"]),
        ({BLOCKS: 8, "lora_rank=16 init=pretrained": 8}, 0, ["lora", "offload"]),
        ({"lora_rank=16 init=pretrained": 0, "offload=all": 0}, 0, ["lora", "offload"]),
        ({"offload=all": 8}, 0, ["lora"]),
        ({"strategy=zero3": 8}, 0, ["lora", "offload"]),
        ({}, 8, ["lora", "offload"]),
    ],
    ids=["proposed", "less is enough", "does not fit", "not counted", "neither is counted", "fits as it is"],
)
def test_what_is_allowed_in_vain_is_named(known: Known, largest: int, idle: list[str]) -> None:
    said: list[str] = []
    ask("optimizer state", known, largest=largest, strategy="fsdp", allowed=ALLOWED, idle=said)
    assert said == idle
    assert ask("optimizer state", known, largest=largest, strategy="fsdp", idle=said) is not None
    assert said == idle, "nothing was allowed"


def test_an_upper_bound_is_one_in_every_sentence() -> None:
    """A step of one micro-batch holds no more than was counted with several; of smaller ones it has several."""
    (file,) = [one for one in FILES if one.path.stem == "qwen2.5-3b-zero2-8"]
    settings = {name: str(file.settings[name]) for name in ("model", "strategy")}
    found = predict(Question("x", settings, 8, 0, 4, 32, whole=False), file, 80)
    assert found.is_upper_bound
    assert found.say_needs().startswith("<= ") and not found.say_needs(2).startswith("<= ")
    assert found.say_needs(4) == found.say_needs()


def test_a_smaller_micro_batch_goes_first_with_what_it_takes() -> None:
    told = ask("parameters", {BLOCKS: 8}, largest=2)
    assert re.fullmatch(r"micro_batch_size=2 fits at the same global batch, \d+\.\d\d of 80 GiB", told)


@pytest.mark.parametrize(
    ("rows", "global_batch", "largest", "proposed"),
    [(64, 0, 31, 16), (64, 1024, 31, 16), (32, 8 * 24, 20, 12), (7, 0, 6, 1), (10**9, 64, 1 << 16, 8)],
)
def test_a_proposed_micro_batch_makes_the_same_step(
    rows: int, global_batch: int, largest: int, proposed: int
) -> None:
    """On 8 ranks; where no global batch is given, of any that the run's own micro-batch divides."""
    told = ask("activations", largest=largest, rows=rows, global_batch=global_batch)
    assert told.startswith(f"micro_batch_size={proposed} fits at the same global batch, ")


def test_what_is_not_counted_is_proposed_by_what_holds_most_and_called_so() -> None:
    for told, begins in (
        (ask("activations"), BLOCKS),
        (ask("activations", activation_checkpointing="blocks", loss_chunk_tokens=512), "strategy=zero1"),
        (ask("logits and loss"), CHUNK),
        (ask("optimizer state"), "strategy=zero1"),
        (ask("optimizer state", {"strategy=zero1": 0}), "strategy=zero2"),
        (ask("optimizer state", strategy="fsdp", allowed=["lora"]), LORA),
        (ask("activations", device_gib=3), "strategy=zero1"),  # the state alone is too much
        (ask("activations", at_one_row="parameters"), "strategy=zero1"),  # fewer rows are not enough
    ):
        assert told.startswith(f"{begins}: ") and told.endswith(NOT_COUNTED), told
    assert not ask("activations", {BLOCKS: 0}).startswith(BLOCKS), "known not to fit"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_that_is_guessed_divides_as_much_or_more(strategy: str) -> None:
    told = ask("optimizer state", strategy=strategy)
    if told.startswith("strategy="):
        less = told.partition("=")[2].partition(":")[0]
        assert less != strategy
        assert set(STRATEGIES[strategy]["holds"]["divided"]) <= set(STRATEGIES[less]["holds"]["divided"])
    known = {f"strategy={name}": 0 for name in STRATEGIES}
    assert "strategy=" not in ask("optimizer state", known, strategy=strategy)


def test_where_no_model_fits_no_setting_is_proposed() -> None:
    told = ask("activations", {BLOCKS: 8}, device_gib=1.9)
    assert told.startswith("no setting makes it fit: CUDA's context and communicators take 1.73 GiB")


FILES: list[OperationsFile] = [one for one in read_operations([SHIPPED]) if one.model == "qwen2.5-3b"]


@pytest.mark.parametrize("name", ["ddp-8", "fsdp-8", "nd-8"])
def test_what_is_said_to_fit_is_what_a_question_about_it_answers(name: str) -> None:
    (file,) = [one for one in FILES if one.path.stem == f"qwen2.5-3b-{name}"]
    settings = {name: str(file.settings[name]) for name in ("model", "strategy", "dimensions")}
    question = Question("x", settings, 8, 0, 1, 0, whole=False)
    look = look_up(FILES, 16)
    told = advise(predict(question, file, 16), look)
    taken = float(told.split(" fits, ")[1].split()[0])
    assert taken <= 0.85 * 16
    candidates = list_candidates(question, file.settings, ())
    found = next(one for one in map(look, candidates) if one and one.verdict is Verdict.FITS)
    assert round(found.needs_gib, 2) == taken


def test_every_strategy_has_its_reason() -> None:
    assert set(WHY) == set(STRATEGIES)
