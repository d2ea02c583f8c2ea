"""What is proposed where a run will not fit: a run that fits, with what it takes; never one that is known not to."""

import re
from dataclasses import replace

import pytest

from stratlab.predict import Prediction
from stratlab.predict.advising import CANNOT_START, NOT_COUNTED, NOT_KNOWN, choose_remedy, find_fewest
from stratlab.predict.answering import answer, complete, look_up
from stratlab.predict.asking import ask_of_model
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
        ({"1 GPUs strategy=single": 8}, "1 GPU with strategy=single"),
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
        ({f"strategy=zero3 {LORA_KEY}": 8, "16 GPUs": 8}, 0, ["offload"]),  # before more GPUs
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
        ("optimizer state", {"known": {"strategy=zero1": None}}, "strategy=zero2"),  # cannot start
        ("optimizer state", {"strategy": "fsdp", "allowed": ["lora"]}, LORA),
        ("activations", {"device_gib": 3}, "strategy=zero1"),  # the state alone is too much
        ("activations", {"at_one_row": "parameters"}, "strategy=zero1"),  # fewer rows are not enough
    ],
)
def test_what_is_not_counted_is_proposed_by_what_holds_most_and_called_so(mostly, given, first):
    told = ask(mostly, **given).advice
    assert told.startswith(f"{first}: ") and told.endswith(NOT_COUNTED)


def advise_on(model, gpus, device_gib, *settings, per_node=0, allowed=()):
    """Answers from recorded steps, what to try first, and the fewest GPUs."""
    questions = ask_of_model(model, gpus, settings, per_node)
    known = [one for one in answer(questions, (), device_gib, None, allowed) if isinstance(one, Prediction)]
    fewest = find_fewest(questions[0], known, look_up((), device_gib), allowed)
    return known, choose_remedy(known), int(fewest.partition(":")[0] or 0)


def test_the_headline_is_the_change_to_the_strategy_that_sends_least():
    known, first, fewest = advise_on("qwen2.5-3b", 4, 24)
    assert min(known, key=lambda one: one.needs_gib).file.strategy == "nd"
    assert first.remedy.file.strategy == "fsdp" and first.remedy.needs_gib == pytest.approx(18.21, abs=0.01)
    assert fewest == 4


@pytest.mark.parametrize(
    ("arguments", "gpus", "fewest"),
    [
        (("qwen2.5-7b", 8, 25, "strategy=hsdp"), 16, 16),
        (("qwen2.5-7b", 7, 24, "strategy=fsdp"), 14, 14),  # no power of two
        (("qwen2.5-0.5b", 4, 24, "strategy=ddp", "micro_batch_size=256", "global_batch_size=1024"), 4, 1),
    ],
)
def test_a_remedy_fits_when_it_is_asked_for_and_no_fewer_gpus_are_said_to_be_too_few(arguments, gpus, fewest):
    _, first, found = advise_on(*arguments)
    asked = first.remedy.question
    assert (asked.ranks, found) == (gpus, fewest)
    others = [f"{name}={value}" for name, value in asked.settings.items() if name != "model"]
    [again] = ask_of_model(asked.settings["model"], gpus, others)
    [same] = answer([again], (), arguments[2], None)
    assert same.verdict is Verdict.FITS and same.needs_gib == first.remedy.needs_gib


def test_the_largest_micro_batch_does_not_depend_on_the_one_asked_about():
    [(one,), _, _] = advise_on("vit_base", 2, 16, "strategy=ddp")
    [_, first, _] = advise_on("vit_base", 2, 16, "strategy=ddp", f"micro_batch_size={one.largest + 1}")
    assert first.remedy.question.rows == first.largest == one.largest


def test_layouts_that_are_the_same_have_one_row():
    known, _, _ = advise_on("qwen2.5-0.5b", 2, 80)
    assert [one.question.name for one in known if one.file.strategy == "nd"] == ["nd 2d"]


def test_where_more_gpus_need_more_a_larger_one_is_named():
    [(one,), first, fewest] = advise_on("mixtral-8x7b", 8, 24, "strategy=fsdp")
    assert (first, fewest) == (None, 0) and "16 GPUs" in one.advice and "132 GiB" in one.advice
