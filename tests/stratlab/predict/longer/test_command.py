"""`stratlab predict` of shipped files: its answers as they were (tests/data/predictions.json), and what is refused."""

import json
import re
import shlex
from pathlib import Path

import pytest

from stratlab.predict.answering import NOT_KNOWN
from stratlab.predict.asking import ask_of_charts
from stratlab.predict.counting import COUNTED
from stratlab_spec.memory.profiles import SHIPPED, read_operations
from stratlab_spec.strategies import STRATEGIES
from tests.codes import find_codes
from tests.stratlab.pinned import check_pinned, reduce
from trainer.memory_estimation.command import _parse

QWEN = ("--model", "qwen2.5-3b")
VIT = ("--model", "vit_huge")
BATCH = (
    "model=qwen2.5-3b",
    "dataset=metamathqa",
    "seq_len=2048",
    "micro_batch_size=4",
    "global_batch_size=64",
)


def put(*settings: str, under: str = "") -> tuple[str, ...]:
    return tuple(word for one in settings for word in ("--set", under + one))


ASKED: dict[str, tuple[str, ...]] = {
    "every strategy on 64 GPUs": (*QWEN, "--gpus", "64"),
    "every strategy on 8 GPUs": QWEN,
    "one with its layout": (*QWEN, *put("strategy=nd", "dimensions=3")),
    "charts, by verdict": ("charts/ddp", "charts/fsdp", *put(*BATCH, under="run.config."), "--no-count",
                           "--set", "run.processesPerNode=8"),
    "micro-batches of the layout's axes": (  # 64 rows are 2 micro-batches of 8 on each of four
        "charts/llm-2d", *put("micro_batch_size=8", "global_batch_size=64", under="run.config."), "--no-count"),
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
    "nine GPUs": (*VIT, "--gpus", "9", "--no-count", *put("micro_batch_size=1")),
    "nine GPUs of 3 GiB": (*VIT, "--gpus", "9", "--no-count", "--device-gib", "3"),
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
        if one["verdict"] != NOT_KNOWN and "causes_gib" in one:
            assert sum(one["causes_gib"].values()) == pytest.approx(one["peak_gib"], abs=0.01)


def test_rows_of_one_table_have_the_same_settings(answers, tmp_path):
    """A file of rows of 512 tokens lies in the cache, which goes before the shipped ones of 2048."""
    folder = tmp_path / "cache/stratlab/operations"
    folder.mkdir(parents=True)
    shipped = json.loads((SHIPPED / "qwen2.5-3b-fsdp-8.json").read_text())
    shipped["settings"] |= {"seq_len": 512, "lora_rank": 8}
    (folder / "a.json").write_text(json.dumps(shipped))
    found = [one for one in answers(*QWEN).values() if one["verdict"] != NOT_KNOWN]
    assert {one["settings"]["seq_len"] for one in found} == {2048} and len(found) > 5


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ((), "predict-source", "--model"),
        (("--model", "qwen2.5"), "predict-model", "qwen2.5-1.5b"),
        ((*QWEN, "--set", "image_size=4"), "set-unknown", "qwen2.5-3b"),
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
        (("charts/ddp", "--gpus", "3"), "gpus-of-charts", "run.nodes"),
        (("charts/ddp", "--gpus-per-node", "3"), "gpus-per-node-of-charts", "run.processesPerNode"),
        ((*QWEN, "--set", "model_heads=7"), "predict-sizes", "model_hidden=2048"),
        (("charts/ddp", "--set", "run.config.model_heads=7"), "predict-sizes", "model_hidden=64"),
        (("charts/llm-2d", "--set", "run.config.micro_batch_size=24", "--no-count"), "predict-batch", "= 96"),
        ((*QWEN, *put("micro_batch_size=8", "global_batch_size=32", "strategy=fsdp")), "predict-batch", "32"),
        (("--model", "vit_base", "--gpus", "16"), "predict-not-counted", "--per-node 8 --set model=vit_base"),
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
    assert (
        call(*ASKED["charts, by verdict"], "--page", page)[0] == 0 and "logits and loss" in page.read_text()
    )


def test_the_printed_command_counts_what_memory_depends_on(call):
    """Also a language model in a folder: that it is one cannot be told from the path."""
    held = {name for file in read_operations([SHIPPED]) for name in file.settings}
    assert held <= set(COUNTED) and len(held) > 40
    asked = ("task=text", "model_path=/data/tiny qwen", "lora_rank=4", "init=pretrained", "seq_len=192")
    code, out, _ = call("charts/ddp", *put(*asked, under="run.config."), "--no-count")
    assert code == 3, "nothing is known"
    words = shlex.split(out.split("`")[1])
    assert words[:3] == ["python", "-m", "trainer.count"] and words[-2:] == [
        "--operations",
        "FOLDER/ddp.json",
    ]
    parsed = _parse(words[3:])
    settings = dict(text.split("=", 1) for text in parsed.set)
    assert (settings["task"], settings["model_path"]) == ("text", "/data/tiny qwen") and parsed.ranks >= 1
