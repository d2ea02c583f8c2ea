"""From a file's counts to a verdict: the arithmetic, and which file answers."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from stratlab.predict.answering import complete
from stratlab.predict.device_memory import GATE, GIB, Device, Verdict
from stratlab.predict.extrapolation import Sample, scale
from stratlab.predict.operations_file import find_operations, read_operations, read_operations_file
from stratlab.predict.prediction import MOST_ROWS, predict
from stratlab.predict.question import Question
from stratlab.user_error import UserError
from stratlab_spec.memory.profiles import SHIPPED
from tests.codes import find_codes
from tests.stratlab.predict.conftest import Call
from tests.stratlab.predict.damaged_files import DAMAGES, SAMPLE_DAMAGES, damage
from tests.stratlab.predict.operations_files import SAMPLES, ask, held, write_file

WANTED = {"model": "qwen2.5-3b", "strategy": "fsdp", "seq_len": "2048"}


def test_what_grows_evenly_is_scaled_exactly() -> None:
    for layers, rows, ranks in product((3, 36), (1, 2, 3, 100), (2, 8, 60)):
        peak = scale(SAMPLES, layers, rows, ranks)
        window = max(held(layers, rows, ranks).items(), key=lambda one: sum(one[1].values()))
        assert (peak.window, peak.causes) == (window[0], window[1])
    last = [Sample(s.layers, s.rows, 8, 7, {"forward": {"activations": 10**9}}) for s in SAMPLES[:6]]
    assert scale([*SAMPLES[:6], *last], 36, 4, 8).rank == 7, "the fullest rank decides"


def test_the_gate_lies_below_the_end() -> None:
    device = Device(gib=80, groups=1)
    fits = int((GATE * 80 - device.fixed_gib) / 1.04 * GIB)
    assert device.judge(fits - GIB // 100) is Verdict.FITS
    assert device.judge(fits + GIB // 100) is Verdict.NEAR_FULL
    assert device.judge(int((80 - device.fixed_gib) / 1.04 * GIB) + GIB // 100) is Verdict.NOT


@pytest.mark.parametrize(
    ("change", "ranks", "others", "missed"),
    [
        ({}, 64, {}, ""),
        ({"precision": "auto", "packing": "True"}, 8, {}, ""),
        ({"seq_len": "4096"}, 8, {}, "seq_len=2048 4096"),
        ({"packing": "false"}, 8, {}, "packing=true false"),
        ({"strategy": "ddp"}, 8, {}, "strategy=fsdp ddp"),
        ({}, 1, {}, "ranks=2, 8 1"),
        ({}, 8, {"accumulates": False}, "one micro-batch in a step several"),
    ],
)
def test_a_file_answers_for_its_own_settings(
    tmp_path: Path, change: dict[str, str], ranks: int, others: dict[str, Any], missed: str
) -> None:
    file = read_operations_file(write_file(tmp_path, **others))
    question = ask(WANTED | change, ranks)
    told = "".join(file.misses(question)).replace(" (wanted", "").replace(")", "")
    assert told == missed and (find_operations([file], question) is file) is not missed
    assert others == {} or not file.misses(ask(WANTED, global_batch=8)), "a step of one micro-batch"


def test_a_setting_left_out_has_its_default_or_is_as_counted(tmp_path: Path) -> None:
    short = {"model": "qwen2.5-3b", "strategy": "fsdp"}
    file = read_operations_file(write_file(tmp_path))
    assert len(file.misses(ask(short))) == 1 and not file.misses(ask(short, whole=False))
    # nobody says a depth who asks for a model; what scales with depth keeps none in its settings
    six = write_file(tmp_path, {"model_layers": 6})
    content = json.loads(six.read_text())
    content["defaults"]["model_layers"] = 0
    six.write_text(json.dumps(content))
    file = read_operations_file(six)
    assert len(file.misses(ask(short, whole=False))) == 1
    assert not file.misses(ask(short | {"model_layers": "6"}, whole=False))


def test_the_largest_micro_batch_is_the_last_that_fits(tmp_path: Path) -> None:
    file = read_operations_file(write_file(tmp_path))
    question = Question("x", WANTED, ranks=8, per_node=8, rows=10**9, global_batch=0)
    found = complete(predict(question, file, 79.6), lambda other: None)

    def fits(rows: int) -> bool:
        return found.device.judge(file.peak(rows, 8).total) is Verdict.FITS

    assert (
        fits(found.largest)
        and (not fits(found.largest + 1) or found.largest == MOST_ROWS)
        and found.largest > 1
    )
    assert found.advice.startswith("run.config.micro_batch_size=64000 ")


def test_a_damaged_file_of_the_cache_is_left_out_and_one_that_is_given_is_refused(
    call: Call, tmp_path: Path
) -> None:
    content = json.loads((SHIPPED / "vit_huge-ddp-8.json").read_text())
    path = tmp_path / "cache/stratlab/operations/damaged.json"
    path.parent.mkdir(parents=True)
    texts = {name: json.dumps(damage(content, name)) for name in (*DAMAGES, *SAMPLE_DAMAGES)}
    for name, text in (texts | {"cut": "{", "no object": "[]", "nothing": '{"schema_version": 1}'}).items():
        path.write_text(text)
        with pytest.raises(UserError) as refused:
            read_operations_file(path)
        assert find_codes(refused.value) == ["SL-operations-file"] and str(path) in str(refused.value), name
    code, out, err = call("--model", "vit_huge", "--set", "strategy=ddp", "--json")
    assert code == 0 and json.loads(out)[0]["operations_file"] == "vit_huge-ddp-8.json"
    assert str(path) in err and find_codes(err) == ["SL-operations-file"]
    assert call("--model", "vit_huge", "--operations", path.parent)[0] == 2
    path.write_text(json.dumps(content | {"schema_version": 9}))
    with pytest.raises(UserError) as newer:
        read_operations_file(path)
    assert find_codes(newer.value) == ["SL-operations-schema"]


WHOLE = {
    ("vit_huge", "hsdp"): "vit_huge hsdp dp_replicate=2 dp_shard=4",
    ("vit_huge", "zeropp"): "",  # there on two nodes
    ("qwen2.5-3b", "nd"): "",  # the report's is of another layout; tests/trainer/counting/ranks has nd
}
"""Of shipped files, what the report calls them where it is not model and strategy."""


def test_shipped_files_give_the_peaks_that_were_counted_whole() -> None:
    """reports/memory.json: all layers, four rows or 32 images, on eight ranks."""
    whole = json.loads(Path("reports/memory.json").read_text())["facts"]["configurations"]
    compared = 0
    for file in read_operations([SHIPPED]):
        one = whole.get(WHOLE.get((file.model, file.strategy), f"{file.model} {file.strategy}"))
        if one is None or file.settings["activation_checkpointing"] != "none":
            continue
        peak = file.peak(4 if "qwen" in file.model else 32, one["ranks"]).total / GIB
        assert peak == pytest.approx(one["gib"]["peak"], rel=0.03), file.path.name
        compared += 1
    assert compared >= 10


@pytest.mark.parametrize(("strategy", "offload"), [("zero2", "optimizer"), ("fsdp", "all")])
def test_what_leaves_the_device_is_found_on_the_host(call: Call, strategy: str, offload: str) -> None:
    """Files of ViT-B, which an H100's allocator has confirmed."""
    batch = "--set=micro_batch_size=256", "--set=global_batch_size=256", f"--set=strategy={strategy}"
    asked = (
        "--model",
        "vit_base",
        "--gpus",
        "1",
        "--operations",
        "benchmarks/gpu/operations",
        *batch,
        "--json",
    )
    kept, moved = (json.loads(call(*asked, f"--set=offload={to}")[1])[0] for to in ("none", offload))
    assert kept["host_gib"] == 0.0 and moved["host_gib"] > kept["peak_gib"] - moved["peak_gib"] > 0.9
    assert moved["causes_gib"].get("optimizer state", 0) == 0 < kept["causes_gib"]["optimizer state"]
    assert moved["causes_gib"]["activations"] >= kept["causes_gib"]["activations"]
