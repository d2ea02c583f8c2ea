"""What is proposed where a run will not fit: a run that fits, with what it takes; never one that is known not to."""

import re
from dataclasses import replace

import pytest

from stratlab.predict import Prediction
from stratlab.predict.advising import CANNOT_START, NOT_COUNTED, NOT_KNOWN
from stratlab.predict.answering import complete
from stratlab.predict.remedies import ALLOWED
from stratlab_spec.memory.extrapolation import Peak
from stratlab_spec.memory.prediction import Device, Verdict
from stratlab_spec.memory.profiles import OperationsFile, Question
from tests.stratlab_spec.memory.operations_files import build_content

GIB = 2**30
SETTINGS = {"strategy": "ddp", "activation_checkpointing": "none", "loss_chunk_tokens": 2048, "lora_rank": 0}
BLOCKS, CHUNK = "activation_checkpointing=blocks", "loss_chunk_tokens=512"
LORA, LORA_KEY = "lora_rank=16, init=pretrained", "lora_rank=16 init=pretrained"


def build(question, settings, peak, largest, gib):
    file = OperationsFile.model_validate(build_content({**SETTINGS, **settings}))
    verdict = Verdict.FITS if largest >= question.rows else Verdict.NOT
    return Prediction(question, file, Device(gib, 1), peak, Peak("host", 0, {}), peak, verdict, largest)


def ask(
    mostly,
    known=None,
    *,
    largest=0,
    device_gib=80.0,
    rows=4,
    global_batch=64,
    at_one_row="",
    allowed=(),
    **settings,
):
    """With its advice, on 8 ranks where one cause holds nearly everything, with one row maybe another one."""
    causes = {"parameters": GIB, "activations": GIB, "logits and loss": GIB} | {mostly: 50 * GIB}
    given = {"model": "qwen2.5-3b", "strategy": settings.get("strategy", "ddp")}
    asked = Question("x", given, 8, 8, rows, global_batch, whole=False)
    one = build(asked, settings, Peak("forward", 0, causes), largest, device_gib)
    if at_one_row:
        less = {"parameters": GIB, "activations": GIB, at_one_row: 50 * GIB}
        one = replace(one, smallest=Peak("forward", 0, less))

    def look(question):
        pairs = question.settings.items()
        changed = [f"{name}={text}" for name, text in pairs if asked.settings.get(name) != text]
        key = " ".join([f"{question.ranks} GPUs"] * (question.ranks != 8) + changed)
        if known is None or key not in known:
            return NOT_KNOWN
        if known[key] is None:
            return CANNOT_START
        return build(question, {}, Peak("forward", 0, {"parameters": 10 * GIB}), known[key], device_gib)

    return complete(one, look, allowed)


@pytest.mark.parametrize(
    ("known", "first"),
    [
        ({BLOCKS: 8, CHUNK: 8, "strategy=zero1": 8, "16 GPUs": 8}, BLOCKS),
        ({BLOCKS: 0, CHUNK: 8, "strategy=zero1": 8}, CHUNK),
        ({BLOCKS: 0, CHUNK: 0, f"{BLOCKS} {CHUNK}": 8, "strategy=zero1": 8}, f"{BLOCKS}, {CHUNK}"),
        ({"strategy=zero2": 8, "strategy=zero1": 8, f"strategy=fsdp {BLOCKS}": 8}, "strategy=zero1"),
        ({"strategy=zero1": 0, f"strategy=fsdp {BLOCKS}": 8, "16 GPUs": 8}, f"strategy=fsdp, {BLOCKS}"),
        (
            {"16 GPUs": 0, "32 GPUs micro_batch_size=2": 8, "64 GPUs micro_batch_size=1": 8},
            "32 GPUs with micro_batch_size=2",
        ),
        ({BLOCKS: 2, "strategy=zero1": 8}, f"{BLOCKS}, micro_batch_size=2"),
    ],
)
def test_what_is_known_to_fit_is_named_in_order(known, first):
    told = ask("activations", known).advice
    assert re.fullmatch(rf"{re.escape(first)} fits, (<= )?\d+\.\d\d of 80 GiB", told), told


@pytest.mark.parametrize(
    ("known", "largest", "idle"),
    [
        ({LORA_KEY: 8}, 0, ["offload"]),
        ({BLOCKS: 8, LORA_KEY: 8}, 0, ["lora", "offload"]),  # less is enough
        (
            {LORA_KEY: 0, "offload=all": 0, f"{LORA_KEY} offload=all": 0},
            0,
            ["lora", "offload"],
        ),  # does not fit
        ({"offload=all": 8}, 0, ["lora"]),  # lora is not counted
        ({}, 8, ["lora", "offload"]),  # fits as it is
    ],
)
def test_what_costs_time_or_changes_the_result_is_proposed_where_it_is_allowed(known, largest, idle):
    found = ask("optimizer state", known, largest=largest, strategy="fsdp", allowed=ALLOWED)
    assert [name for name, _ in found.idle] == idle, "allowed in vain"
    assert ("lora" in found.advice) is ("lora" not in idle)
    plain = ask("optimizer state", known, largest=largest, strategy="fsdp")
    assert not plain.idle and "lora" not in plain.advice and "offload" not in plain.advice


@pytest.mark.parametrize(
    ("rows", "global_batch", "largest", "proposed"),
    [(64, 0, 31, 31), (32, 8 * 24, 20, 12), (7, 0, 6, 6), (10**9, 64, 1 << 16, 8)],
)
def test_a_proposed_micro_batch_makes_the_same_step(rows, global_batch, largest, proposed):
    """On 8 ranks; any where no global batch is given."""
    told = ask("activations", {BLOCKS: 8}, largest=largest, rows=rows, global_batch=global_batch).advice
    assert told.startswith(f"micro_batch_size={proposed} ")


@pytest.mark.parametrize(
    ("mostly", "given", "first"),
    [
        ("activations", {}, BLOCKS),
        ("activations", {"activation_checkpointing": "blocks", "loss_chunk_tokens": 512}, "strategy=zero1"),
        ("logits and loss", {}, CHUNK),
        ("optimizer state", {"known": {"strategy=zero1": 0}}, "strategy=zero2"),
        ("optimizer state", {"strategy": "fsdp", "allowed": ["lora"]}, LORA),
        ("activations", {"device_gib": 3}, "strategy=zero1"),  # the state alone is too much
        ("activations", {"at_one_row": "parameters"}, "strategy=zero1"),  # fewer rows are not enough
    ],
)
def test_what_is_not_counted_is_proposed_by_what_holds_most_and_called_so(mostly, given, first):
    told = ask(mostly, **given).advice
    assert told.startswith(f"{first}: ") and told.endswith(NOT_COUNTED)
