"""What must be equal to go on from another run, how faults are written, what an optimizer and adapters are made of."""

import json
import re
from typing import Any

import pytest
import torch
from torch import nn

from stratlab_spec.registry import OPTIMIZERS, adapter_problems, count_moments, list_own_settings
from stratlab_spec.settings import rules as continuation
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.faults import FAULTS, rank_problems
from stratlab_spec.settings.fields import Settings
from stratlab_spec.settings.rules import (
    MAY_DIFFER,
    continuation_problems,
    resolved_problems,
    snapshot_problems,
    swapped_problems,
)
from tests.codes import find_codes, refuses
from trainer.distributed.world import Precision
from trainer.engines.deepspeed_config import ModelSizes, build_settings
from trainer.engines.torch_engine import build_optimizer, optimizer_arguments
from trainer.launch import preflight
from trainer.launch.batch_validation import check_run


def config(**settings) -> Settings:
    return Settings(run="b", resume_from="demo/a", **settings)


def test_what_is_not_free_must_be_equal_and_what_the_other_did_not_know_counts_as_left_alone(monkeypatch):
    before = Settings(run="a", strategy="ddp", steps=10).model_dump()
    moved = config(strategy="zero3", offload="all", micro_batch_size=4, steps=20, log_every=5)
    assert continuation_problems(before, moved) == []
    del before["label_smoothing"]
    assert continuation_problems(before, moved) == []
    (said,) = continuation_problems(before, config(label_smoothing=0.1))
    assert find_codes(said) == ["SL-resume-other-settings"] and "label_smoothing=0.1" in said
    monkeypatch.setattr(continuation, "MAY_DIFFER", [name for name in MAY_DIFFER if name != "log_every"])
    assert "log_every=5 (was 10: " in continuation_problems(before, moved)[0], "no table names it"


def test_a_longer_plan_needs_a_learning_rate_that_does_not_follow_it():
    before = Settings(run="a", steps=10, lr_schedule="linear").model_dump()
    assert continuation_problems(before, config(steps=10, lr_schedule="linear")) == []
    assert "steps=20" in continuation_problems(before, config(steps=20, lr_schedule="linear"))[0]


def test_what_the_settings_came_to_is_compared_where_both_have_it():
    before = {"precision": "bf16", "data_sha256": "a", "world_size": 2}
    assert resolved_problems(before, before | {"world_size": 8}, "demo/a") == []
    assert resolved_problems(before, {"precision": "bf16"}, "demo/a") == []
    (said,) = resolved_problems(before, {"precision": "fp32", "data_sha256": "b"}, "demo/a")
    assert find_codes(said) == ["SL-resume-other-facts"]
    assert "precision='fp32' (was 'bf16'" in said and "data_sha256='b' (was 'a'" in said


def test_what_was_swapped_between_two_attempts_of_one_run():
    taught = config(teacher="demo/big", dataset_path="/data/birds")
    before = {"teacher_sha256": "a", "data_sha256": "c", "initial_weights_sha256": "e"}
    now = {"teacher_sha256": "b", "data_sha256": "d", "initial_weights_sha256": "f"}
    weights, samples = swapped_problems(before, now, taught)
    assert find_codes(weights) == find_codes(samples) == ["SL-run-files-swapped"]
    assert "TRAINER_TEACHER='demo/big'" in weights and "TRAINER_DATASET_PATH='/data/birds'" in samples
    (named,) = swapped_problems(before, before | {"data_sha256": "d"}, config(dataset="cifar10"))
    assert "TRAINER_DATASET='cifar10'" in named
    assert swapped_problems(before, before, taught) == swapped_problems({}, before, taught) == []


@pytest.mark.parametrize("fault", ["explode@3", "kill@0", "kill@3:x", "kill@3!!"])
def test_what_is_no_fault_is_refused(fault):
    assert not re.search(FAULTS, fault)


def test_a_rank_that_is_not_there_is_named():
    assert [*rank_problems("kill@3:1,nan@4", 2)] == []
    (said,) = rank_problems("kill@3:2", 2)
    assert find_codes(said) == ["SL-fault-rank"] and "rank 2" in said


def test_a_snapshot_is_refused_on_a_cpu_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "has_gpu", lambda: False)
    config = Config(run="x", memory_snapshot=True, results=str(tmp_path))
    with refuses(ConfigError, "SL-snapshot-no-gpu"):
        preflight.check(config, 1, {})
    assert snapshot_problems(config, gpu=True) == snapshot_problems(Config(run="x"), gpu=False) == []


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "adamw": ({"beta1": 0.8, "beta2": 0.95, "eps": 1e-6}, {"betas": (0.8, 0.95), "eps": 1e-6}),
    "sgd": ({"momentum": 0.7, "nesterov": True}, {"momentum": 0.7, "nesterov": True}),
}
"""Settings away from their defaults, and the arguments that they are."""


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_torch_and_deepspeed_are_given_the_same(optimizer: str) -> None:
    settings, arguments = OTHERS[optimizer]
    assert {*settings} == {*list_own_settings(optimizer)}
    wanted = arguments | {"lr": 0.1, "weight_decay": 0.2}
    config = Config(run="r", strategy="zero2", optimizer=optimizer, lr=0.1, weight_decay=0.2, **settings)
    assert optimizer_arguments(config) == wanted
    (group,) = build_optimizer(config, nn.Linear(2, 2).parameters()).param_groups
    assert {name: group[name] for name in wanted} == wanted
    sizes = ModelSizes(parameters=1000, block=300, outside=100)
    world: Any = {"world_size": 1, "processes_per_node": 1, "sizes": sizes, "device_type": "cpu"}
    told = build_settings(config, Precision("fp32"), **world)["optimizer"]["params"]
    assert {name: told[name] for name in wanted} == json.loads(json.dumps(wanted))
    assert set(told) - set(wanted) <= {"torch_adam", "fused"}


@pytest.mark.parametrize(
    ("optimizer", "given"), [("adamw", {}), ("sgd", {"momentum": 0.5}), ("sgd", {"momentum": 0.0})]
)
def test_its_row_says_what_torch_keeps(optimizer: str, given: dict[str, float]) -> None:
    config = Config(run="r", optimizer=optimizer, **given)
    layer = nn.Linear(2, 3)
    built = build_optimizer(config, layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    built.step()
    for parameter in layer.parameters():
        kept = [each for each in built.state[parameter].values() if torch.is_tensor(each) and each.dim()]
        assert len(kept) == count_moments(config)


CODE = "SL-lora-without-init"


def check(elsewhere: bool = True, **settings: Any) -> list[str]:
    env = {f"TRAINER_{name.upper()}": str(value) for name, value in {"run": "r", **settings}.items()}
    found = check_run(env, elsewhere=elsewhere, replaces=True, opened=set())
    assert found["code"] in (0, 2)
    return find_codes(found["problems"])


@pytest.mark.parametrize("elsewhere", [True, False])
def test_adapters_on_random_weights_are_asked_for(elsewhere, tmp_path):
    given = {"lora_rank": 4, "image_size": 32, "results": tmp_path, "steps": 40}
    assert check(elsewhere, **given) == [CODE]
    assert check(elsewhere, **given, init="scratch") == check(elsewhere, **given | {"lora_rank": 0}) == []


def test_a_folder_is_no_answer_by_itself_but_a_name_and_another_run_are():
    for settings, codes in (
        ({"model_path": "/net"}, [CODE]),
        ({"model_path": "/net", "init": "pretrained"}, []),
        ({"model": "mobilenet_finetuned"}, []),
        ({"resume_from": "default/first"}, []),
    ):
        config = Config.from_env(
            {"TRAINER_RUN": "r", **{f"TRAINER_{k.upper()}": v for k, v in settings.items()}}
        )
        assert find_codes(adapter_problems(config.model_copy(update={"lora_rank": 4}))) == codes
