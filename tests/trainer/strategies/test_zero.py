from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn

from trainer.measuring.phases import Phases
from trainer.settings.config import Config, ConfigError
from trainer.settings.precision import Precision
from trainer.strategies import zero


def test_parameters_that_qwz_cannot_quantize_are_refused_before_deepspeed_sees_them():
    """A head of 101 classes: 101 x 16 elements are 808 on each of 2 processes, its bias 51."""
    config = Config(run="try", strategy="zeropp", zeropp="qwz", precision="fp32")
    mesh, axes = SimpleNamespace(device_type="cpu"), SimpleNamespace(dp_shard=2)
    run = SimpleNamespace(config=config, mesh=mesh, axes=axes, precision=Precision("fp32"))
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 101))
    with pytest.raises(
        ConfigError, match=r"of 1 of 4 parameters they are others on 2 processes, first 1\.bias"
    ):
        zero.build(run, model, Phases("cpu"))  # type: ignore[arg-type]
