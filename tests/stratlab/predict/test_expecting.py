"""`stratlab expect`: the nearest published rows, the place of one's own speed among them, and wrong input."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from stratlab.predict.expecting import Expectation, SpeedQuestion, ask_of_run
from stratlab.predict.published import (
    FARTHEST,
    MOST_OF_SOURCE,
    OTHER_KIND,
    OTHER_STRATEGY,
    PublishedRow,
    Sought,
    find_nearest,
)
from stratlab.predict.timing import TIE_PCT
from tests.codes import find_codes

RUN = Path(__file__).parents[2] / "data/runs/h200/vit_base-fsdp"
SOUGHT = Sought("dense", 50.0, 2048, "h100", 8, "fsdp", "full")
ROW = PublishedRow(
    source="one",
    model="a",
    family="dense",
    parameters_b=8.0,
    length=2048,
    card="h100",
    gpus=8,
    strategy="fsdp",
    method="full",
    recompute="",
    micro_batch="1",
    per_s=9890.0,
    slowest_per_s=9000.0,
    rows=3,
    gflop=50.0,
    rule="shape",
)


@pytest.mark.parametrize(
    ("change", "distance"),
    [
        ({}, 0.0),
        ({"gflop": 25.0}, 1.0),
        ({"gpus": 32}, 1.0),
        ({"length": 8192}, 0.5),
        ({"strategy": "zero3"}, OTHER_STRATEGY),
        ({"strategy": "ddp"}, OTHER_KIND),
        ({"strategy": "nd"}, OTHER_KIND),
    ],
)
def test_distances_are_factors_of_two_and_steps_of_strategies(change, distance):
    assert SOUGHT.distance(replace(ROW, **change)) == pytest.approx(distance)
    of_any = replace(SOUGHT, strategy="").distance(replace(ROW, **change))
    assert of_any == pytest.approx(0.0 if "strategy" in change else distance)


def test_the_card_is_equal_first_and_other_work_never_counts():
    far, other_card = replace(ROW, gflop=400.0), replace(ROW, source="two", card="a100-80gb")
    assert find_nearest([other_card, far], SOUGHT) == [far], "nearer, but another card"
    assert find_nearest([other_card], SOUGHT) == [other_card], "without a row of the card"
    beyond = replace(ROW, gflop=50.0 * 2 ** (FARTHEST + 0.1))
    others = [
        beyond,
        replace(ROW, method="lora"),
        replace(ROW, family="transformer"),
        replace(ROW, family="depthwise"),
    ]
    assert find_nearest(others, SOUGHT) == []


def test_a_source_does_not_fill_the_list():
    rows = [replace(ROW, micro_batch=str(number)) for number in range(9)] + [
        replace(ROW, source="two", gpus=64)
    ]
    found = find_nearest(rows, SOUGHT)
    assert [row.source for row in found] == ["one"] * MOST_OF_SOURCE + ["two"]


@pytest.mark.parametrize(
    ("share", "place", "gap_pct"),
    [
        (1.2, "inside", 0.0),
        (1 - (TIE_PCT - 1) / 100, "inside", -(TIE_PCT - 1)),
        (0.5, "below", -50.0),
        (2 + 2 * (TIE_PCT + 4) / 100, "above", TIE_PCT + 4),
    ],
)
def test_a_speed_is_placed_and_a_gap_within_the_scatter_of_machines_is_none(share, place, gap_pct):
    """ROW: 9,890 tokens x 50 GFLOP = 494.5 of 989 TFLOP/s: an MFU of 50 %; the other row has 100."""
    rows = [ROW, replace(ROW, per_s=2 * ROW.per_s)]
    found = Expectation(SpeedQuestion("a", SOUGHT, "tokens", True, share * ROW.per_s), rows, {"one": "here"})
    assert found.range_pct == pytest.approx((50.0, 100.0))
    assert found.place == place and found.gap_pct == pytest.approx(gap_pct)
    assert bool(found.as_dict()["causes"]) == (place != "inside")


def test_measured_waits_come_first_and_sizes_off_the_tiles_are_named():
    asked = SpeedQuestion("a", SOUGHT, "tokens", False, 1.0, {"network": 12.0, "host": 3.0})
    causes = dict(Expectation(asked, [ROW], {}).list_causes())
    assert list(causes)[:2] == ["network", "host"] and causes["network"].startswith("12 %")
    assert "64" in causes["shape"] and "card" not in causes
    elsewhere = Expectation(asked, [replace(ROW, card="b200")], {})
    assert "card" in dict(elsewhere.list_causes())


def test_a_model_and_a_run_are_answered_with_sources(stratlab):
    model = ("Qwen/Qwen2.5-3B-Instruct", "--gpus", "8", "--gpu", "h100", "--set", "strategy=fsdp")
    found = json.loads(stratlab("expect", *model, "--tokens-per-s", "400000", "--json")[1])
    assert found["placed"]["place"] == "above" and found["placed"]["tokens_per_s_per_gpu"] == 50_000
    low, high = found["range"]["mfu_pct"]
    assert 20 < low < high < 50 and {row["card"] for row in found["rows"]} == {"h100"}
    assert all(row["published"] for row in found["rows"])
    run = json.loads(stratlab("expect", str(RUN), "--json")[1])
    measured = json.loads((RUN / "summary.json").read_text())
    assert run["placed"]["mfu_pct"] == pytest.approx(measured["mfu_pct"], rel=1e-3)
    assert run["placed"]["place"] == "inside" and run["asked"]["card"] == "h200"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("qwen2.5-3b",), 2, ["SL-expect-gpu"]),
        (("qwen2.5-3b", "--gpu", "h1000"), 2, ["SL-predict-gpu"]),
        (("cnn", "--gpu", "l4"), 2, ["SL-expect-flops"]),
        (
            ("vit_base", "--gpu", "h100", "--set", "strategy=ddp", "--set", "offload=all"),
            2,
            ["SL-offload-strategy"],
        ),
        ((str(RUN), "--gpus", "8"), 2, ["SL-expect-options"]),
        (("llama-3.1-8b", "--gpu", "l4", "--gpus", "4096", "--set", "lora_rank=8"), 3, []),
    ],
)
def test_wrong_input_and_questions_without_a_near_row(stratlab, arguments, code, says):
    ended, _, said = stratlab("expect", *arguments)
    assert (ended, find_codes(said)) == (code, says)


def test_a_folder_of_a_model_is_no_run(stratlab, tmp_path):
    shape = {"model_type": "llama", "hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 16}
    shape |= {"num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    ended, found, _ = stratlab("expect", str(tmp_path), "--gpus", "8", "--gpu", "h100", "--json")
    assert ended == 0 and json.loads(found)["rows"]


def test_a_run_of_several_gpus_has_their_share_and_its_measured_waits(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(RUN, folder)
    summary = folder / "summary.json"
    one = json.loads(summary.read_text())
    summary.write_text(
        json.dumps(one | {"world_size": 4, "tokens_per_s": 4e4, "flops_per_token": 2e10, "seq_len": 512})
    )
    (folder / "analysis").mkdir()
    (folder / "analysis/report.json").write_text(json.dumps({"mean": {"comm_exposed_pct": 30.0}}))
    asked = ask_of_run(folder)
    assert (asked.unit, asked.per_s, asked.waits) == ("tokens", 1e4, {"network": 30.0})
    assert asked.sought == Sought("dense", 20.0, 512, "h200", 4, "fsdp", "full")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"device_name": "cpu"}, "SL-expect-device"),
        ({"samples_per_s": None}, "SL-expect-numbers"),
        ({"world_size": True}, "SL-expect-numbers"),
        ({"samples_per_s": float("nan")}, "SL-expect-numbers"),
        ({"flops_per_sample": "many"}, "SL-expect-numbers"),
        ({"tokens_per_s": 5.0, "flops_per_token": 1e9, "seq_len": "x"}, "SL-expect-damaged"),
        (None, "SL-expect-run"),
    ],
)
def test_a_run_that_cannot_be_placed(stratlab, tmp_path, change, says):
    folder = tmp_path / "run"
    shutil.copytree(RUN, folder)
    summary = folder / "summary.json"
    if change is None:
        summary.unlink()
    else:
        summary.write_text(json.dumps(json.loads(summary.read_text()) | change))
    ended, _, said = stratlab("expect", str(folder))
    assert (ended, find_codes(said)) == (2, [says])
