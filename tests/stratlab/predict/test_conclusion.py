"""The last line of `stratlab predict`, from shipped files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stratlab.predict.answering import answer
from stratlab.predict.asking import ask_of_model
from stratlab.predict.conclusion import WHY, conclude
from stratlab.predict.device_memory import DEVICE_GIB
from stratlab.predict.operations_file import SHIPPED, read_operations
from stratlab.predict.prediction import Prediction
from stratlab.tables.strategies import STRATEGIES
from tests.stratlab.predict.test_predict import Call, call

__all__ = ["call"]


def last_line(out: str) -> str:
    return out.splitlines()[-1]


def test_every_strategy_has_its_reason() -> None:
    assert set(WHY) == set(STRATEGIES)


def test_what_fits_is_named_and_what_sends_least_goes_first(call: Call) -> None:
    _, out, _ = call("--model", "vit_huge")
    assert re.match(
        r"in short: ddp, .*fsdp.* fit\. Take ddp first: nothing else that divides the data sends less",
        last_line(out),
    )
    assert "image_size=224 (the model's own)" in out and "image_size=0" not in out
    _, out, _ = call("--model", "qwen2.5-3b", "--device-gib", "40")
    assert re.match(r"in short: (?!ddp).* fit\. Take zero2 first: ", last_line(out))


def test_what_hardly_fits_is_not_advised_without_saying_so(call: Call) -> None:
    """Of zero1 four rows fit, of ddp one; of vit_huge more under ddp, too."""
    _, out, _ = call("--model", "qwen2.5-3b")
    assert last_line(out).endswith(
        "Take ddp first: nothing else that divides the data sends less. But no micro-batch above 1 fits under it "
        "(59.51 of 79.2 GiB): zero1 has room for 4, and more rows at once may win more than sending less; measure both "
        "before a long run"
    )
    _, out, _ = call("--model", "vit_huge")
    assert last_line(out).endswith("sends less; compare it with the next one before a long run")


def test_where_nothing_has_room_nobody_is_said_to_have_it() -> None:
    files = list(read_operations([SHIPPED]))
    found = answer(ask_of_model("qwen2.5-3b", 8, files, ()), files, DEVICE_GIB, None)
    narrow = [one for one in found if isinstance(one, Prediction) and one.largest == 1]
    assert [one.question.name for one in narrow] == ["ddp", "nd 1d"]
    assert re.search(
        r"But no micro-batch above 1 fits under it \(.*\), nor under another of them; compare it with the next one",
        conclude(narrow),
    )


@pytest.mark.parametrize(
    ("device_gib", "said"),
    [
        ("8", "in short: none fits; nd 4d needs least (17.72 of 8 GiB). Change first: "),
        ("20.5", "in short: none fits; nd 4d needs least (17.72 of 20.5 GiB)"),
    ],
)
def test_where_none_fits_the_nearest_is_told_with_what_to_change(
    call: Call, device_gib: str, said: str
) -> None:
    _, out, _ = call("--model", "qwen2.5-3b", "--device-gib", device_gib)
    assert last_line(out).startswith(said)
    assert not last_line(out).endswith("Change first: ")


def test_one_question_gets_one_answer(call: Call) -> None:
    asked = ("--model", "qwen2.5-3b", "--set", "strategy=ddp")
    assert last_line(call(*asked)[1]) == "in short: ddp fits, with a micro-batch up to 1"
    code, out, _ = call(*asked, "--device-gib", "40")
    assert code == 10 and last_line(out).startswith(
        "in short: ddp does not fit (59.51 of 40 GiB). Change first: "
    )


def test_the_only_one_that_fits_is_called_so(call: Call) -> None:
    _, out, _ = call("--model", "qwen2.5-3b", "--device-gib", "20.9")
    assert re.match(r"in short: only nd 4d fits, with a micro-batch up to \d+$", last_line(out))


def test_what_is_not_known_is_not_said(tmp_path: Path, call: Call) -> None:
    """Of 9 ranks no file of hsdp, nd or zero3 answers."""
    some = ("--model", "vit_huge", "--gpus", "9", "--no-count")
    _, out, _ = call(*some, "--set", "micro_batch_size=1")
    assert "not known" in out and " fit. Take ddp first" in last_line(out)
    _, out, _ = call(*some, "--device-gib", "3")
    assert re.match(r"in short: none of the \d that are known fits; \w+ needs least ", last_line(out))
