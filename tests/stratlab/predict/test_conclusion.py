"""The last line of `stratlab predict`, from shipped files: what to take, or to change, with what it takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stratlab.predict.answering import answer
from stratlab.predict.asking import ask_of_model
from stratlab.predict.conclusion import NOT_ESTIMATED, conclude
from stratlab.predict.device_memory import DEVICE_GIB, GATE
from stratlab.predict.operations_file import SHIPPED, read_operations
from stratlab.predict.prediction import Prediction
from tests.stratlab.predict.test_predict import Call, call

__all__ = ["call"]
QWEN = ("--model", "qwen2.5-3b")


def last_line(out: str) -> str:
    said = out.splitlines()[-1]
    assert said.endswith(NOT_ESTIMATED)
    return said.removesuffix(f". {NOT_ESTIMATED}")


def test_checkpointing_is_what_makes_room_on_small_gpus(call: Call) -> None:
    """4 GPUs of 24 GB: no strategy fits as it comes; more GPUs are not needed."""
    code, out, _ = call(*QWEN, "--gpus", "4", "--device-gib", "24")
    assert code == 10
    assert "activation_checkpointing=blocks fits, 18.21 of 24 GiB" in last_line(out)
    (row,) = [line for line in out.splitlines() if line.startswith("ddp ") and " not fit " in line]
    assert "strategy=fsdp, activation_checkpointing=blocks fits, 18.21 of 24 GiB" in row
    asked = (*QWEN, "--gpus", "4", "--device-gib", "24", "--set", "activation_checkpointing=blocks")
    code, out, _ = call(*asked, "--set", "strategy=fsdp")
    assert code == 0 and "(18.21 of 24 GiB)" in last_line(out), "as a question about it answers"


def test_what_fits_is_named_with_what_it_takes_and_what_sends_least_goes_first(call: Call) -> None:
    _, out, _ = call("--model", "vit_huge")
    said = last_line(out)
    assert re.match(r"in short: ddp \(\S+ of 79.2 GiB\), .*fsdp \(.* fit\. Take ddp first: ", said)
    assert "would send less" not in said
    assert "image_size=224 (the model's own)" in out and "image_size=0" not in out
    _, out, _ = call(*QWEN, "--device-gib", "40")
    assert re.match(r"in short: (?!ddp).* fit\. Take fsdp first: ", last_line(out))


def test_what_is_recommended_leaves_room(call: Call) -> None:
    """Of zero1 four rows fit, of ddp one, which sends less."""
    _, out, _ = call(*QWEN)
    said = last_line(out)
    assert "Take zero1 first: " in said and "room for a micro-batch of 4; ddp would send less" in said


def test_where_nothing_has_room_what_makes_room_is_named(call: Call) -> None:
    files = list(read_operations([SHIPPED]))
    found = answer(ask_of_model("qwen2.5-3b", 8, files, ()), files, DEVICE_GIB, None)
    narrow = [one for one in found if isinstance(one, Prediction) and one.largest == 1]
    assert [one.question.name for one in narrow] == ["ddp", "nd 1d"]
    said = conclude(narrow)
    assert re.search(
        r"activation_checkpointing=blocks leaves room \(\S+ of 79.2 GiB\), for a micro-batch up to \d+", said
    )
    assert "Take" not in said
    code, out, _ = call(*QWEN, "--set", "strategy=ddp")
    assert code == 0 and last_line(out).startswith(
        "in short: ddp fits (59.51 of 79.2 GiB), with a micro-batch up to 1. "
    )
    assert "activation_checkpointing=blocks leaves room" in last_line(out)


@pytest.mark.parametrize("device_gib", ["8", "12", "16", "20.5"])
def test_where_none_fits_what_does_is_named_or_nothing_is_said_to(call: Call, device_gib: str) -> None:
    code, out, _ = call(*QWEN, "--device-gib", device_gib)
    said = last_line(out)
    assert code == 10 and said.startswith(
        f"in short: none fits; nd 4d needs least (17.72 of {device_gib} GiB). Change "
    )
    advice = said.partition("Change first: ")[2]
    assert advice
    for taken in re.findall(r"fits, (\S+) of", advice):
        assert float(taken) <= GATE * float(device_gib)


def test_nd_gets_advice(call: Call) -> None:
    """More dimensions hold less; and another strategy may do."""
    _, out, _ = call(*QWEN, "--set", "strategy=nd", "--device-gib", "40")
    rows = {line[:5]: line for line in out.splitlines() if line.startswith("nd ") and "does not fit" in line}
    assert set(rows) == {"nd 1d"} and re.search(r" fits, \S+ of 40 GiB", rows["nd 1d"])
    _, out, _ = call(*QWEN, "--set", "strategy=nd", "--set", "dimensions=1", "--device-gib", "21.5")
    assert re.search(
        r"(strategy=|dimensions=|activation_checkpointing=)\S+ fits, \S+ of 21.5 GiB", last_line(out)
    )


def test_one_question_gets_one_answer(call: Call) -> None:
    code, out, _ = call(*QWEN, "--set", "strategy=ddp", "--device-gib", "40")
    assert code == 10 and last_line(out).startswith(
        "in short: ddp does not fit (59.51 of 40 GiB). Change first: "
    )


def test_the_only_one_that_fits_is_called_so(call: Call) -> None:
    _, out, _ = call(*QWEN, "--device-gib", "20.9")
    assert re.match(
        r"in short: only nd 4d fits \(17.72 of 20.9 GiB\), with a micro-batch up to \d+", last_line(out)
    )


def test_what_may_be_proposed_besides_is_said_by_the_user(call: Call) -> None:
    code, _, err = call(*QWEN, "--allow", "lora,magic")
    assert code == 2 and "--allow magic: expected of lora, offload" in err
    assert call(*QWEN, "--gpus", "4", "--device-gib", "24", "--allow", "lora,offload")[0] == 10
    _, out, _ = call("--model", "vit_huge", "--gpus", "1", "--device-gib", "8", "--allow", "offload")
    assert "--allow offload changes nothing of single: " in out


@pytest.mark.parametrize("device_gib", ["40", "79.2", "139.8"])
def test_on_one_gpu_what_was_allowed_is_not_passed_over_in_silence(device_gib: str, call: Call) -> None:
    _, out, _ = call(*QWEN, "--gpus", "1", "--device-gib", device_gib, "--allow", "lora,offload")
    told = [line.split()[1] for line in out.splitlines() if line.startswith("--allow ")]
    assert sorted(told) == ["lora", "offload"]


def test_a_bound_has_one_form_in_tables_and_sentences(call: Call) -> None:
    _, out, _ = call(*QWEN, "--set", "strategy=zero2", "--set", "global_batch_size=8", "--device-gib", "40")
    needs = re.findall(r"(<= |at most |)(29\.33|26\.54)\b", out)
    assert len(needs) >= 4 and {before for before, _ in needs} == {"<= "}


def test_a_setting_that_holds_no_memory_is_not_called_unknown(call: Call) -> None:
    held = ("lr", "epochs", "seed", "weight_decay", "warmup_steps", "steps", "checkpoint_every")
    for name in (*held, "lrr", "image_size", "data_residence"):
        code, _, err = call(*QWEN, "--set", f"{name}=1")
        assert code == 2 and (f"does not depend on {name}" in err) is (name in held)


def test_what_is_not_known_is_not_said(tmp_path: Path, call: Call) -> None:
    """Of 9 ranks no file of hsdp, nd or zero3 answers."""
    some = ("--model", "vit_huge", "--gpus", "9", "--no-count")
    _, out, _ = call(*some, "--set", "micro_batch_size=1")
    assert "not known" in out and " fit. Take ddp first" in last_line(out)
    _, out, _ = call(*some, "--device-gib", "3")
    assert re.match(r"in short: none of the \d that are known fits; \w+ needs least ", last_line(out))
