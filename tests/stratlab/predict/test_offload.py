"""What is kept in host memory is foreseen apart from the device's."""

from __future__ import annotations

import json

import pytest

from tests.stratlab.predict.test_predict import Call, call

__all__ = ["call"]
COUNTED = "benchmarks/gpu/operations"
"""Files of ViT-B, which an H100's allocator has confirmed."""


def ask(call: Call, strategy: str, offload: str, *more: str) -> str:
    given = {"strategy": strategy, "offload": offload, "micro_batch_size": "256", "global_batch_size": "256"}
    sets = [text for name, value in given.items() for text in ("--set", f"{name}={value}")]
    code, out, err = call("--model", "vit_base", "--gpus", "1", "--operations", COUNTED, *sets, *more)
    assert code == 0, err
    return out


@pytest.mark.parametrize(("strategy", "offload"), [("zero2", "optimizer"), ("zero3", "all"), ("fsdp", "all")])
def test_what_leaves_the_device_is_found_on_the_host(call: Call, strategy: str, offload: str) -> None:
    found = {}
    for place in ("none", offload):
        told = ask(call, strategy, place)
        assert ("in host memory" in told) is (f"offload={place}" in told) is (place != "none")
        (found[place],) = json.loads(ask(call, strategy, place, "--json"))
    kept, moved = found["none"], found[offload]
    assert kept["host_gib"] == 0.0 and moved["host_gib"] > kept["peak_gib"] - moved["peak_gib"] > 0.9
    assert moved["causes_gib"].get("optimizer state", 0) == 0 < kept["causes_gib"]["optimizer state"]
    assert moved["causes_gib"]["activations"] >= kept["causes_gib"]["activations"]
