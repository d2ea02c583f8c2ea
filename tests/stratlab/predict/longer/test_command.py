"""`stratlab predict` from recorded steps: its answers as they were (tests/data/predictions.json), and what is refused.
Advice that is followed to the letter is a run that the trainer starts."""

import json
import re
import shlex
from pathlib import Path

import pytest

from stratlab.predict import Prediction
from stratlab.predict.answering import answer
from stratlab.predict.asking import ask_of_charts, ask_of_model
from stratlab.predict.counting import fill_question
from stratlab.predict.remedies import ALLOWED
from stratlab_spec.strategies import STRATEGIES
from tests.codes import find_codes
from tests.stratlab.pinned import check_pinned, reduce
from trainer.launch.batch_validation import check_run
from trainer.memory_estimation.command import _parse

QWEN = ("qwen2.5-3b",)
VIT = ("vit_huge",)
BATCH = (
    "model=qwen2.5-3b",
    "dataset=metamathqa",
    "seq_len=2048",
    "micro_batch_size=4",
    "global_batch_size=64",
)


def put(*settings, under=""):
    return tuple(word for one in settings for word in ("--set", under + one))


ASKED = {
    "every strategy on 64 GPUs": (*QWEN, "--gpus", "64"),
    "every strategy on 8 GPUs": QWEN,
    "one with its layout": (*QWEN, *put("strategy=nd", "dimensions=3")),
    "charts, by verdict": ("charts/ddp", "charts/fsdp", *put(*BATCH, under="run.config."),
                           "--set", "run.processesPerNode=8"),
    "micro-batches of the layout's axes": (  # 64 rows are 2 micro-batches of 8 on each of four
        "charts/llm-2d", *put("micro_batch_size=8", "global_batch_size=64", under="run.config.")),
    "a batch that some refuse": (*QWEN, *put("micro_batch_size=8", "global_batch_size=32")),
    "GPUs of a node untold": VIT,
    "four GPUs on a node": (*VIT, "--gpus-per-node", "4"),
    "two GPUs on a node": (*VIT, "--gpus-per-node", "2"),
    "one strategy": (*VIT, *put("strategy=ddp")),
    "one strategy, 20 GiB": (*VIT, *put("strategy=ddp"), "--device-gib", "20"),
    "one strategy, 90,000 GiB": (*VIT, *put("strategy=ddp"), "--device-gib", "90000"),
    "the model's own size": (*VIT, *put("image_size=224")),
    "40 GiB": (*QWEN, "--device-gib", "40"),
    "four GPUs of 24 GiB": (*QWEN, "--gpus", "4", "--device-gib", "24"),
    "as it was advised there": (  # answers with the same need
        *QWEN, "--gpus", "4", "--device-gib", "24", *put("activation_checkpointing=blocks", "strategy=fsdp")),
    "none fits": (*QWEN, "--device-gib", "8"),
    "one fits": (*QWEN, "--device-gib", "20.5"),
    "more dimensions hold less": (*QWEN, *put("strategy=nd"), "--device-gib", "40"),
    "nine GPUs": (*VIT, "--gpus", "9", *put("micro_batch_size=1")),
    "nine GPUs of 3 GiB": (*VIT, "--gpus", "9", "--device-gib", "3"),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_it_answers_what_it_answered(name, call):
    """As JSON, and the numbers and names of the lines, in whatever order."""
    code, out, _ = call(*ASKED[name])
    told = [word.strip("().,;:`") for word in out.split()]
    words = sorted(word for word in told if re.search(r"\d|\w=", word) or word in STRATEGIES)
    answers = reduce(json.loads(call(*ASKED[name], "--json")[1]), set(STRATEGIES))
    answers = [{key: value for key, value in one.items() if key != "settings"} for one in answers]
    check_pinned("predictions.json", name, {"code": code, "answers": answers, "words": words})
    for one in answers:
        if one["causes_gib"]:
            assert sum(one["causes_gib"].values()) == pytest.approx(one["peak_gib"], abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("charts/ddp", "qwen2.5-3b"), "predict-source", "qwen2.5-3b"),
        (("vit_base", "qwen2.5-3b"), "predict-models", "vit_base"),
        (("qwen2.5",), "predict-model", "qwen2.5-1.5b"),
        ((*QWEN, "--set", "sequence=4"), "set-unknown", "seq_len"),
        ((*QWEN, "--set", "lr=1"), "set-no-memory", "lr"),
        ((*QWEN, "--set", "lr"), "set-no-value", "lr"),
        ((*VIT, "--set", "micro_batch_size=٣٢"), "set-value", "micro_batch_size=٣٢"),
        ((*QWEN, "--page", "nowhere/x.html"), "page-no-folder", "nowhere/x.html"),
        ((*VIT, "--page", "charts"), "page-is-folder", "charts"),
        ((*QWEN, "--operations", "nowhere"), "operations-folder", "nowhere"),
        ((*QWEN, "--values", "x.yaml"), "values-of-model", "--values"),
        ((*QWEN, "--allow", "lora,all"), "predict-allow", "lora, offload"),
        ((*VIT, "--gpus-per-node", "3"), "gpus-per-node", "--gpus 8"),
        ((*VIT, "--set", "strategy=single"), "predict-single", "--gpus 1"),
        ((*VIT, "--set", "seq_len=64"), "set-of-text", "seq_len"),
        (("charts/ddp", "--gpus", "3"), "gpus-of-charts", "run.nodes"),
        (("charts/ddp", "--gpus-per-node", "3"), "gpus-per-node-of-charts", "run.processesPerNode"),
        ((*QWEN, "--set", "model_heads=7"), "predict-sizes", "model_hidden=2048"),
        (("charts/ddp", "--set", "run.config.model_heads=7"), "predict-sizes", "model_hidden=64"),
        (("charts/llm-2d", "--set", "run.config.micro_batch_size=24"), "nd-batch-indivisible", "= 96"),
        (
            (*QWEN, *put("micro_batch_size=8", "global_batch_size=32", "strategy=fsdp")),
            "axes-batch-indivisible",
            "32",
        ),
    ],
)
def test_wrong_input_is_named(call, arguments, code, named):
    ended, out, err = call(*arguments)
    assert (ended, out, find_codes(err)) == (2, "", [f"SL-{code}"]) and named in err


def test_charts_are_asked_as_rendered_and_written_as_a_page(call, tmp_path):
    [question] = ask_of_charts([Path("charts/llm-2d")], ["run.nodes=2"], [])
    assert (question.ranks, question.per_node, question.rows) == (16, 8, 1)
    assert question.settings["strategy"] == "nd" and question.settings["seq_len"] == "2048"
    page = tmp_path / "page.html"
    assert call(*ASKED["charts, by verdict"], "--page", page)[0] == 0
    assert "logits and loss" in page.read_text()


def test_the_printed_command_counts_what_memory_depends_on(call):
    """Also a language model in a folder: that it is one cannot be told from the path."""
    asked = ("task=text", "model_path=/data/tiny qwen", "lora_rank=4", "init=pretrained", "seq_len=192")
    code, out, _ = call("charts/ddp", *put(*asked, under="run.config."))
    assert code == 3, "nothing is known"
    words = shlex.split(out.split("`")[1])
    assert words[:3] == ["python", "-m", "trainer.count"]
    assert words[-2:] == ["--operations", "FOLDER/ddp.json"]
    parsed = _parse(words[3:])
    settings = dict(text.split("=", 1) for text in parsed.set)
    assert (settings["task"], settings["model_path"]) == ("text", "/data/tiny qwen") and parsed.ranks >= 1


def follow(advice, gpus, typed):
    """What is typed after the advice, and the number of GPUs."""
    told = re.split(r" fits|: | leaves room", advice)[0]
    changed = {name: text.rstrip(",") for name, text in re.findall(r"([a-z_]+)=(\S+)", told)}
    gone = re.split(", ", told.partition(" without ")[2])
    more = re.match(r"(\d+) GPUs", told)
    kept = {name: text for name, text in {**typed, **changed}.items() if name not in gone}
    return kept, int(more[1]) if more else gpus


def find_problems(question):
    """As `python -m trainer` says it before it starts."""
    filled = fill_question(question)
    per_node = filled.per_node or filled.ranks
    env = {f"TRAINER_{name.upper()}": text for name, text in filled.settings.items()}
    places = {"PET_NNODES": str(filled.ranks // per_node), "PET_NPROC_PER_NODE": str(per_node)}
    found = check_run(env | places | {"TRAINER_RUN": "x"}, elsewhere=True, replaces=False, opened=set())
    return list(found["problems"])


@pytest.mark.parametrize(
    ("model", "gpus", "device_gib", "typed", "allowed"),
    [
        ("qwen2.5-3b", 8, 79.2, {}, ()),
        ("qwen2.5-3b", 4, 16, {"strategy": "ddp", "init": "pretrained"}, ALLOWED),
        ("qwen2.5-3b", 8, 16, {"strategy": "nd", "dimensions": "2"}, ()),
        ("vit_huge", 64, 139.8, {"micro_batch_size": "1000"}, ALLOWED),
    ],
)
def test_what_is_advised_is_accepted(model, gpus, device_gib, typed, allowed):
    questions = ask_of_model(model, gpus, [f"{name}={text}" for name, text in typed.items()])
    for one in answer(questions, (), device_gib, None, allowed):
        if isinstance(one, Prediction) and one.advice:
            strategy = one.question.settings["strategy"]
            given, ranks = follow(one.advice, gpus, {**typed, "strategy": strategy})
            pairs = [f"{name}={text}" for name, text in given.items()]
            for question in ask_of_model(model, ranks, pairs):
                assert find_problems(question) == [], f"{one.advice} -> {pairs}"
