"""What a rank tells of its run, as far as no other rank is needed."""

from __future__ import annotations

from types import SimpleNamespace

from torch import nn

from stratlab_spec.settings.config import Config
from trainer.worker import _describe_zeropp


def test_what_zeropp_sends_in_few_bits_is_told():
    """The matrix of 4096 stays whole on every rank by default, so only its gradient is sent in blocks."""
    model = nn.Linear(64, 64)

    def describe(**settings):
        config = Config(run="r", strategy="zeropp", **settings)
        return _describe_zeropp(SimpleNamespace(config=config, axes=SimpleNamespace(dp_shard=2)), model)

    told = describe(zeropp="qwz,qgz")
    assert [told[part]["parameters"] for part in ("qwz", "qgz")] == [0, 1]
    assert describe(zeropp="qwz", persistent_elements=4095)["qwz"]["parameters"] == 1
    assert describe() == {}
    model.weight.requires_grad = False
    assert describe(zeropp="qgz")["qgz"]["parameters"] == 0
