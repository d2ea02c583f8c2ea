"""From a peak to a verdict, on a page, on a terminal, and in one sentence by the verbs that start runs."""

import json
import re
from dataclasses import replace

import pytest

from stratlab.predict import MOST_ROWS, predict
from stratlab.predict.answering import answer, complete, foretell
from stratlab.predict.asking import ask_of_model
from stratlab.predict.prediction_report import build_prediction_page
from stratlab_spec.memory.prediction import GATE, Device, Verdict
from stratlab_spec.memory.profiles import GIB, SHIPPED, Question, read_operations
from tests.codes import find_codes
from tests.stratlab_spec.memory.operations_files import make_file


def test_the_gate_lies_below_the_end():
    device = Device(gib=80, groups=1)
    fits = int((GATE * 80 - device.fixed_gib) / 1.04 * GIB)
    assert device.judge(fits - GIB // 100) is Verdict.FITS
    assert device.judge(fits + GIB // 100) is Verdict.NEAR_FULL
    assert device.judge(int((80 - device.fixed_gib) / 1.04 * GIB) + GIB // 100) is Verdict.NOT


@pytest.mark.parametrize("device_gib", [1.9, 2.04, 2.05, 79.6])
def test_the_largest_micro_batch_is_the_last_that_fits(tmp_path, device_gib):
    """On 79.6 GiB as many as are looked for."""
    file = make_file(tmp_path)
    question = Question("x", {}, ranks=8, per_node=8, rows=10**9, global_batch=0)
    found = predict(question, file, device_gib)
    fits = [found.device.judge(file.peak(found.largest + more, 8).total) is Verdict.FITS for more in (0, 1)]
    assert fits[0] or found.largest == 0
    assert not fits[1] or found.largest == MOST_ROWS
    if device_gib == 79.6:
        advice = complete(found, lambda other: None).advice
        assert advice.startswith("run.config.micro_batch_size=64000 ")


def test_a_damaged_file_of_the_cache_is_left_out_and_one_that_is_given_is_refused(call, cache):
    cache.mkdir(parents=True)
    (path := cache / "damaged.json").write_text("{}")
    code, out, err = call("--model", "vit_huge", "--set", "strategy=ddp", "--json")
    assert code == 0 and json.loads(out)[0]["operations_file"] == "vit_huge-ddp-8.json"
    assert str(path) in err and find_codes(err) == ["SL-operations-file"]
    code, _, err = call("--model", "vit_huge", "--operations", cache)
    assert code == 2 and find_codes(err) == ["SL-operations-file"]


@pytest.mark.parametrize(("strategy", "offload"), [("zero2", "optimizer"), ("fsdp", "all")])
def test_what_leaves_the_device_is_found_on_the_host(call, strategy, offload):
    """Files of ViT-B, which an H100's allocator has confirmed."""
    given = ("micro_batch_size=256", "global_batch_size=256", f"strategy={strategy}")
    files = ("--operations", "benchmarks/gpu/operations")
    asked = ("--model", "vit_base", "--gpus", "1", *files, *(f"--set={one}" for one in given), "--json")
    kept, moved = (json.loads(call(*asked, f"--set=offload={to}")[1])[0] for to in ("none", offload))
    assert kept["host_gib"] == 0.0 and moved["host_gib"] > kept["peak_gib"] - moved["peak_gib"] > 0.9
    assert moved["causes_gib"].get("optimizer state", 0) == 0 < kept["causes_gib"]["optimizer state"]
    assert moved["causes_gib"]["activations"] >= kept["causes_gib"]["activations"]


def test_an_upper_bound_looks_like_one_and_sizes_have_two_decimals():
    files = list(read_operations([SHIPPED]))
    questions = ask_of_model("vit_huge", 8, files, ["micro_batch_size=1"])
    answers = answer([replace(one, global_batch=8) for one in questions], files, 80.0, None)
    page = build_prediction_page(answers, 80.0)
    cells = re.findall(r'<td class="num">(&lt;= [0-9.]+)</td>', page)
    totals = re.findall(r'<text[^>]*text-anchor="start" class="n">([0-9.]+)</text>', page)
    assert len(cells) == len(totals) == 2 * len(answers)
    assert all(re.fullmatch(r"(&lt;= )?[0-9]+[.][0-9]{2}", one) for one in (*cells, *totals))


VIT = {"model": "vit_huge", "precision": "bf16", "strategy": "ddp", "global_batch_size": "4096"}


def pods(**settings: str) -> dict[str, str]:
    given = {f"TRAINER_{name.upper()}": value for name, value in {**VIT, **settings}.items()}
    return {"PET_NNODES": "1:1", "PET_NPROC_PER_NODE": "8"} | given


def test_what_fits_is_told_and_what_does_not_with_its_cause_and_what_to_try():
    told = foretell("ddp", pods(micro_batch_size="32"))
    assert told.startswith("ddp: ") and "79.2 GiB" in told and "=" not in told
    told = foretell("ddp", pods(micro_batch_size="256"))
    assert "activations" in told and "micro_batch_size=" in told


@pytest.mark.parametrize(
    "settings",
    [
        {"memory_forecast": "false"},
        {"mode": "evaluate"},
        {"micro_batch_size": "many"},
        {"lora_rank": "8"},
        {"model": "vit_tiny"},
    ],
)
def test_where_nobody_knows_or_asks_nothing_is_said(settings):
    assert foretell("ddp", pods(micro_batch_size="256") | pods(**settings)) == ""
    assert foretell("ddp", pods() | {"PET_NPROC_PER_NODE": "auto"}) == ""
