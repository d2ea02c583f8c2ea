from __future__ import annotations

import json
from typing import Any

import pytest

from tests.codes import find_codes
from tests.documents.commands import ROOT, read_commands, split
from trainer.api import ConfigError, deepspeed_config
from trainer.api.experiment import main

COMMANDS = [c for c in read_commands() if " trainer.settings deepspeed --" in c][:2]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"nodes": 0}, "nodes=0"),
        ({"processes": 0}, "processes='0'"),
        ({"labels": -5}, "labels=-5"),
        ({"strategy": "ddp"}, "strategy='ddp'"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"strategy": "zeropp"}, "hpz"),  # nothing to it on one node
    ],
)
def test_what_is_wrong_is_named_as_it_was_given(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        deepspeed_config(**{"strategy": "zero3", "processes": 2, "model": "cnn", **given})
    assert named in str(refused.value) and "TRAINER_" not in str(refused.value)


def test_what_a_gpu_changes() -> None:
    given = {"processes": 2, "model": "cnn", "image_size": 8, "global_batch_size": 32, "micro_batch_size": 8}
    zero3 = deepspeed_config(strategy="zero3", offload="all", precision="bf16_native", **given)
    section = zero3["zero_optimization"]
    assert section["stage"] == 3 and section["offload_param"] == {"device": "cpu", "pin_memory": True}
    assert zero3["bf16"]["enabled"] and zero3["train_micro_batch_size_per_gpu"] == 8
    zeropp = deepspeed_config(strategy="zeropp", nodes=2, **given)
    assert zeropp["zero_optimization"]["zero_hpz_partition_size"] == 2
    assert zeropp["gradient_accumulation_steps"] == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_the_documents_command(command: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    assert main(split(command)[4:]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["zero_optimization"]["stage"] == 3 and printed["gradient_clipping"] == 0.0
    hpz = printed["zero_optimization"]["zero_hpz_partition_size"]
    assert hpz == (2 if "zeropp" in command else 1)
    assert printed["flops_profiler"]["enabled"] is ("flops_profiler" in command)
    assert printed["bf16"]["enabled"] is False and printed["communication_data_type"] == "fp32"


def test_the_command_says_it_in_a_sentence(capsys) -> None:
    assert main(["--set", "strategy=fsdp"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and find_codes(said.err) == ["SL-not-deepspeed"]
