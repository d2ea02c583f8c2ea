"""`stratlab predict` of shipped files: what is answered, refused and advised; nothing asks the trainer here."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from stratlab.predict.answering import NOT_KNOWN, answer
from stratlab.predict.asking import ask_of_charts, ask_of_model
from stratlab.predict.counting import COUNTED
from stratlab.predict.prediction import Prediction
from stratlab.predict.prediction_report import NOT_ESTIMATED, conclude
from stratlab_spec.memory import DEVICE_GIB
from stratlab_spec.memory.prediction import GATE
from stratlab_spec.memory.profiles import SHIPPED, read_operations
from stratlab_spec.strategies import STRATEGIES
from tests.codes import find_codes
from trainer.memory_estimation.command import _parse

QWEN = ("--model", "qwen2.5-3b")
VIT = ("--model", "vit_huge")


def conclusion(out: str) -> str:
    said, ending, _ = " ".join(out.split()).partition(f". {NOT_ESTIMATED}")
    assert ending
    return said


def choose(out: str) -> str:
    """The strategy that the conclusion names behind those that fit."""
    advice = conclusion(out).split(". ", 1)[1]
    return next(word for word in re.findall(r"\w+", advice) if word in STRATEGIES)


def test_a_model_and_gpus_give_every_strategy_that_ships(answers):
    found = answers(*QWEN, "--gpus", "64")
    assert "ranks=8" in found["hsdp"]["reason"] and found["nd 3d"]["verdict"] == NOT_KNOWN
    known = {name: one for name, one in found.items() if one["verdict"] != NOT_KNOWN}
    for one in known.values():
        assert sum(one["causes_gib"].values()) == pytest.approx(one["peak_gib"], abs=0.01)
    assert known["fsdp"]["peak_gib"] < known["zero2"]["peak_gib"] < known["ddp"]["peak_gib"]
    peaks = {name: one["peak_gib"] for name, one in answers(*QWEN, "--gpus", "8").items()}
    assert peaks["nd 1d"] > peaks["nd 2d"] > peaks["nd 3d"]
    asked = answers(*QWEN, "--gpus", "8", "--set", "strategy=nd", "--set", "dimensions=3")
    assert {name: one["peak_gib"] for name, one in asked.items()} == {"nd": peaks["nd 3d"]}


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
        ((*QWEN, "--set", "micro_batch_size=0"), "set-value", "micro_batch_size=0"),
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
    ],
)
def test_wrong_input_is_named(call, arguments, code, named):
    ended, out, err = call(*arguments)
    assert (ended, out, find_codes(err)) == (2, "", [f"SL-{code}"]) and named in err
    assert len(err.splitlines()) == 1 and "trainer.count" not in err


def test_charts_are_answered_as_rendered_and_written_as_a_page(call, tmp_path):
    [question] = ask_of_charts([Path("charts/llm-2d")], ["run.nodes=2"], [])
    assert (question.ranks, question.per_node, question.rows) == (16, 8, 1)
    assert question.settings["strategy"] == "nd" and question.settings["seq_len"] == "2048"
    batch = (
        "model=qwen2.5-3b",
        "dataset=metamathqa",
        "seq_len=2048",
        "micro_batch_size=4",
        "global_batch_size=64",
    )
    settings = [word for one in batch for word in ("--set", f"run.config.{one}")]
    page = tmp_path / "page.html"
    places = ("--set", "run.processesPerNode=8", "--page", page, "--no-count")
    code, out, _ = call("charts/ddp", "charts/fsdp", *settings, *places)
    rows = [line.split() for line in out.splitlines()]
    assert code == 0 and [row[0] for row in rows if row[1:2] == ["fits"]] == ["fsdp"]
    assert [row[0] for row in rows if row[:1] in (["ddp"], ["fsdp"])] == ["fsdp", "ddp"], "by verdict"
    assert any("ddp:" in row and "run.config.micro_batch_size=1" in row for row in rows)
    assert "logits and loss" in page.read_text()


def test_micro_batches_of_a_chosen_layout_are_those_of_its_axes(answers, call):
    """pp2.dp4 of 8 ranks: 64 rows are 2 micro-batches of 8 on each of four, not one."""
    batch = ("--set", "run.config.micro_batch_size=8", "--set", "run.config.global_batch_size=64")
    (found,) = answers("charts/llm-2d", *batch, "--no-count").values()
    assert found["micro_batches"] == 2 and not found["at_most"]
    code, _, err = call("charts/llm-2d", "--set", "run.config.micro_batch_size=24", "--no-count")
    assert code == 2 and find_codes(err) == ["SL-predict-batch"] and "= 96" in err


def test_what_the_trainer_refuses_does_not_fit_anything(call, answers):
    batch = ("--set", "micro_batch_size=8", "--set", "global_batch_size=32")
    verdicts = {name: one["verdict"] for name, one in answers(*QWEN, *batch).items()}
    assert verdicts["ddp"] == "cannot start" and verdicts["nd 2d"] == "does not fit"
    code, _, err = call(*QWEN, *batch, "--set", "strategy=fsdp")
    assert code == 2 and find_codes(err) == ["SL-predict-batch"]


def test_how_many_gpus_a_node_has_is_said_or_asked(call):
    assert (
        "--gpus-per-node" in call(*VIT)[1] and "--gpus-per-node" not in call(*VIT, "--set", "strategy=ddp")[1]
    )
    code, out, _ = call(*VIT, "--gpus-per-node", "4")
    assert code == 0 and "--gpus-per-node" not in out and NOT_KNOWN not in out
    _, out, _ = call(*VIT, "--gpus-per-node", "2")
    assert {line.split()[0] for line in out.splitlines() if NOT_KNOWN in line} == {"hsdp", "zeropp"}
    assert "--per-node 2 --set model=vit_huge --set strategy=hsdp" in out


def test_a_micro_batch_beyond_the_counted_ones_is_called_so(call, answers):
    asked = (*VIT, "--set", "strategy=ddp")
    assert answers(*asked)["ddp"]["counted_micro_batch_size"] == 32
    told = {gib: call(*asked, "--device-gib", gib)[1] for gib in ("79.2", "20", "90000")}
    found = {
        gib: {*re.findall(r"(\d+)(?: [a-z ]+)? \(estimate\)", conclusion(out))} for gib, out in told.items()
    }
    assert found == {"79.2": {"167"}, "20": set(), "90000": {"65536"}}
    shown = {gib: {*re.findall(r"(~\d+\+?) ", out)} for gib, out in told.items()}
    assert shown == {"79.2": {"~167"}, "20": set(), "90000": {"~65536+"}}
    code, out, _ = call(*VIT, "--set", "image_size=224")
    assert code == 0 and NOT_KNOWN not in out, "an image size of 0 is the model's own"


def test_the_printed_command_names_all_that_memory_depends_on(call):
    held = {name for file in read_operations([SHIPPED]) for name in file.settings}
    assert held <= set(COUNTED) and len(held) > 40
    code, out, _ = call("charts/fsdp", "--no-count", "--set", "run.config.model=vit_base")
    assert code == 3, "nothing is known"
    words = shlex.split(out.split("`")[1])
    assert words[:3] == ["python", "-m", "trainer.count"] and words[-2:] == [
        "--operations",
        "FOLDER/fsdp.json",
    ]
    parsed = _parse(words[3:])
    settings = dict(text.split("=", 1) for text in parsed.set)
    assert (settings["strategy"], settings["model"]) == ("fsdp", "vit_base") and parsed.ranks >= 1
    code, _, err = call("--model", "vit_base", "--gpus", "16")
    assert code == 2 and find_codes(err) == ["SL-predict-not-counted"] and "--count" in err
    assert "--per-node 8 --set model=vit_base --set strategy=fsdp --set dataset=timm" in err


def test_the_printed_command_counts_a_language_model_in_a_folder_with_adapters(call):
    asked = ("task=text", "model_path=/data/tiny qwen", "lora_rank=4", "init=pretrained", "seq_len=192")
    settings = [word for one in asked for word in ("--set", f"run.config.{one}")]
    words = shlex.split(call("charts/ddp", *settings, "--no-count")[1].split("`")[1])
    given = dict(text.split("=", 1) for text in _parse(words[3:]).set)
    assert given["task"] == "text" and given["model_path"] == "/data/tiny qwen"


def test_what_fits_is_named_with_what_it_takes_and_what_sends_least_goes_first(call):
    assert choose(call(*VIT)[1]) == "ddp" and choose(call(*QWEN, "--device-gib", "40")[1]) == "fsdp"
    assert choose(call(*QWEN)[1]) == "zero1", "four rows fit; of ddp, which sends less, one"
    code, out, _ = call(*QWEN, "--set", "strategy=ddp")
    assert code == 0 and "59.51 of 79.2 GiB" in conclusion(out) and "=blocks" in conclusion(out)


def test_checkpointing_is_what_makes_room(call):
    """4 GPUs of 24 GB: no strategy fits as it comes; more GPUs are not needed."""
    small = (*QWEN, "--gpus", "4", "--device-gib", "24")
    code, out, _ = call(*small)
    assert code == 10 and "activation_checkpointing=blocks" in conclusion(out) and "18.21 of 24 GiB" in out
    code, out, _ = call(*small, "--set", "activation_checkpointing=blocks", "--set", "strategy=fsdp")
    assert code == 0 and "18.21 of 24 GiB" in conclusion(out), "as a question about it answers"
    files = list(read_operations([SHIPPED]))
    found = answer(ask_of_model("qwen2.5-3b", 8, files, ()), files, DEVICE_GIB, None)
    narrow = [one for one in found if isinstance(one, Prediction) and one.largest == 1]
    assert [one.question.name for one in narrow] == ["ddp", "nd 1d"]
    assert re.search(r"=blocks [a-z ]+ \S+ of 79.2 GiB", conclude(narrow))


@pytest.mark.parametrize("device_gib", ["8", "20.5"])
def test_where_none_fits_what_does_is_named_or_nothing_is_said_to(call, device_gib):
    code, out, _ = call(*QWEN, "--device-gib", device_gib)
    said = conclusion(out)
    assert code == 10 and "nd 4d " in said and f"17.72 of {device_gib} GiB" in said
    taken = re.findall(r", ([\d.]+) of", said)
    assert all(float(one) <= GATE * float(device_gib) for one in taken)
    _, out, _ = call(*QWEN, "--set", "strategy=nd", "--device-gib", "40")
    assert re.search(r"nd 1d:? .*=.* \S+ of 40 GiB", out), "more dimensions hold less"


def test_what_is_not_known_is_not_said(call):
    """Of 9 ranks no file of hsdp, nd or zero3 answers."""
    some = (*VIT, "--gpus", "9", "--no-count")
    out = call(*some, "--set", "micro_batch_size=1")[1]
    assert NOT_KNOWN in out and choose(out) == "ddp"
    assert "of 3 GiB" in conclusion(call(*some, "--device-gib", "3")[1])
