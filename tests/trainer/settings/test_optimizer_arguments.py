"""Whatever the settings say of an update reaches torch's optimizer and DeepSpeed's alike."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from stratlab_spec.registry import OPTIMIZERS, count_moments, list_own_settings
from stratlab_spec.settings.config import Config
from trainer.distributed.world import Precision
from trainer.engines.deepspeed_config import ModelSizes, build_settings
from trainer.engines.torch_engine import build_optimizer, optimizer_arguments

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
