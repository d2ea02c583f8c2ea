"""From a peak to a verdict, on a page, on a terminal, and in one sentence by the verbs that start runs."""

import json

import pytest

from stratlab.predict.answering import foretell
from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.memory.prediction import GATE, Device, Verdict
from stratlab_spec.memory.profiles import GIB
from stratlab_spec.memory.simulated import SOURCE
from tests.codes import find_codes


def test_the_gate_lies_below_the_end():
    device = Device(gib=80, groups=1)
    fits = int((GATE * 80 - device.fixed_gib) / 1.04 * GIB)
    assert device.judge(fits - GIB // 100) is Verdict.FITS
    assert device.judge(fits + GIB // 100) is Verdict.NEAR_FULL
    assert device.judge(int((80 - device.fixed_gib) / 1.04 * GIB) + GIB // 100) is Verdict.NOT


def test_a_damaged_file_of_the_cache_is_left_out_and_one_that_is_given_is_refused(call, cache):
    cache.mkdir(parents=True)
    (path := cache / "damaged.json").write_text("{}")
    code, out, err = call("vit_huge", "--set", "strategy=ddp", "--json")
    assert code == 0 and json.loads(out)[0]["operations_file"] == SOURCE
    assert str(path) in err and find_codes(err) == ["SL-operations-file"]
    code, _, err = call("vit_huge", "--operations", cache)
    assert code == 2 and find_codes(err) == ["SL-operations-file"]


@pytest.mark.parametrize(("strategy", "offload"), [("zero2", "optimizer"), ("fsdp", "all")])
def test_what_leaves_the_device_is_found_on_the_host(call, strategy, offload):
    """Files of ViT-B, which an H100's allocator has confirmed."""
    given = ("micro_batch_size=256", "global_batch_size=256", f"strategy={strategy}", "precision=bf16")
    files = ("--operations", "benchmarks/gpu/operations")
    asked = ("vit_base", "--gpus", "1", *files, *(f"--set={one}" for one in given), "--json")
    kept, moved = (json.loads(call(*asked, f"--set=offload={to}")[1])[0] for to in ("none", offload))
    assert kept["host_gib"] == 0.0 and moved["host_gib"] > kept["peak_gib"] - moved["peak_gib"] > 0.9
    assert moved["causes_gib"].get("optimizer state", 0) == 0 < kept["causes_gib"]["optimizer state"]
    assert moved["causes_gib"]["activations"] >= kept["causes_gib"]["activations"]


VIT = {"model": "vit_huge", "precision": "bf16", "strategy": "ddp", "global_batch_size": "4096"}


def pods(**settings):
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
        {"reduce_dtype": "bf16"},
        {"model": "cnn"},
    ],
)
def test_where_nobody_knows_or_asks_nothing_is_said(settings):
    assert foretell("ddp", pods(micro_batch_size="256") | pods(**settings)) == ""
    assert foretell("ddp", pods() | {"PET_NPROC_PER_NODE": "auto"}) == ""


def test_a_model_whose_config_json_cannot_be_had_is_not_foretold(monkeypatch):
    def read_shape(config):
        raise DataMissing(f"{config.model}: no network")

    monkeypatch.setattr("stratlab_spec.memory.step_prediction.read_shape", read_shape)
    assert foretell("fsdp", pods(model="qwen2.5-3b", dataset="metamathqa", strategy="fsdp")) == ""
