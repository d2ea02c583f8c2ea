"""Whatever the settings say of an update reaches torch's optimizer and DeepSpeed's alike."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stratlab.tables.optimizers import count_moments as count_for_tools
from trainer.engines.deepspeed_config import ModelSizes, build_settings
from trainer.engines.optimizer import build_optimizer
from trainer.settings.config import Config
from trainer.settings.optimizer_arguments import optimizer_arguments
from trainer.settings.optimizer_table import OPTIMIZERS, count_moments, describe_for_tools, list_own_settings
from trainer.settings.precision import Precision


class Noted:
    """A configuration that notes which of its settings are asked for."""

    def __init__(self, config: Config) -> None:
        self.config, self.names = config, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self.config, name)


def moved(optimizer: str) -> tuple[Config, set[str]]:
    """A configuration with every number that `optimizer_arguments` reads off its default, and their names."""
    noted = Noted(Config(run="r", strategy="zero2", optimizer=optimizer))
    optimizer_arguments(noted)  # type: ignore[arg-type]
    numbers = noted.names - {"optimizer"}
    given = {name: 0.5 * Config.model_fields[name].default or 0.25 for name in numbers}
    given |= {name: True for name in numbers if Config.model_fields[name].annotation is bool}
    return Config(run="r", strategy="zero2", optimizer=optimizer, **given), numbers


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_torch_and_deepspeed_are_given_the_same(optimizer: str) -> None:
    config, numbers = moved(optimizer)
    assert numbers == {"lr", "weight_decay", *list_own_settings(optimizer)}
    noted = Noted(config)
    (group,) = build_optimizer(noted, nn.Linear(2, 2).parameters()).param_groups  # type: ignore[arg-type]
    assert noted.names == {"optimizer", *numbers}, "read by optimizer_arguments, where DeepSpeed sees it too"
    sizes = ModelSizes(parameters=1000, block=300, outside=100)
    world = {"world_size": 1, "processes_per_node": 1, "sizes": sizes, "device_type": "cpu"}
    told = build_settings(config, Precision("fp32"), **world)["optimizer"]["params"]  # type: ignore[arg-type]
    wanted = optimizer_arguments(config)
    assert {name: group[name] for name in wanted} == wanted
    assert {name: told[name] for name in wanted} == json.loads(json.dumps(wanted))
    assert set(told) - set(wanted) <= {"torch_adam", "fused"}
    plain = optimizer_arguments(Config(run="r", optimizer=optimizer))
    changed = {name for name, value in wanted.items() if value != plain[name]}
    assert changed == set(wanted), "each of them is an argument"
    assert len(
        [x for value in wanted.values() for x in (value if isinstance(value, tuple) else (value,))]
    ) == len(numbers), "and nothing else is"


def test_each_setting_is_the_argument_that_its_name_says() -> None:
    adamw = Config(run="r", optimizer="adamw", beta1=0.8, beta2=0.95, eps=1e-6, lr=0.1, weight_decay=0.2)
    wanted = {"lr": 0.1, "weight_decay": 0.2, "betas": (0.8, 0.95), "eps": 1e-6}
    assert wanted.items() <= optimizer_arguments(adamw).items()
    sgd = Config(run="r", optimizer="sgd", momentum=0.7, nesterov=True, lr=0.1, weight_decay=0.2)
    wanted = {"lr": 0.1, "weight_decay": 0.2, "momentum": 0.7, "nesterov": True}
    assert wanted.items() <= optimizer_arguments(sgd).items()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("on", [False, True])
def test_its_row_says_what_torch_keeps(optimizer: str, on: bool) -> None:
    """Of every setting that a row names, and with all of its switches off and on."""
    row = OPTIMIZERS[optimizer]
    switches = [name for name in list_own_settings(optimizer) if Config.model_fields[name].annotation is bool]
    given = {name: Config.model_fields[name].default or 0.5 for name in row.moments_with}
    config = Config(run="r", optimizer=optimizer, **(given | dict.fromkeys(switches, on)))
    layer = nn.Linear(2, 3)
    built = build_optimizer(config, layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    built.step()
    for parameter in layer.parameters():
        kept = [each for each in built.state[parameter].values() if torch.is_tensor(each) and each.dim()]
        assert len(kept) == count_moments(config)


def test_what_the_tools_read_is_this_table() -> None:
    written = Path("stratlab/tables/optimizers.json").read_text()
    assert written == describe_for_tools(), "make schema"
    for settings in ({"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "sgd", "momentum": 0.0}, {}):
        assert count_for_tools({"optimizer": "adamw"} | settings) == count_moments(
            Config(run="r", **({"optimizer": "adamw"} | settings))
        )
    assert count_for_tools({"optimizer": "lion"}) is None


def test_it_needs_no_torch() -> None:
    code = "import sys, trainer.settings.optimizer_arguments; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
