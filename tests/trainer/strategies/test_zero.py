from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn

from trainer.measuring.phases import Phases
from trainer.settings.config import Config, ConfigError
from trainer.settings.precision import Precision
from trainer.strategies import zero


class Mesh:
    """As many processes as somebody says, none of which is there."""

    device_type = "cpu"

    def __init__(self, processes: int) -> None:
        self._axis = SimpleNamespace(size=lambda: processes)

    def __getitem__(self, name: str) -> SimpleNamespace:
        return self._axis


def test_parameters_that_qwz_cannot_quantize_are_refused_before_deepspeed_sees_them():
    """A head of 101 classes: 101 x 16 elements are 808 on each of 2 processes, its bias 51."""
    config = Config(run="try", strategy="zeropp", zeropp="qwz", precision="fp32")
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 101))
    with pytest.raises(
        ConfigError, match=r"of 1 of 4 parameters they are others on 2 processes, first 1\.bias"
    ):
        zero.build(config, Mesh(2), model, Phases("cpu"), Precision("fp32"))  # type: ignore[arg-type]
