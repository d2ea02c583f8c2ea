from __future__ import annotations

from typing import Any

import pytest

from trainer.api import ConfigError, deepspeed_config


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"nodes": "2"}, "nodes='2': expected a number from 1"),
        ({"nodes": 1.5}, "nodes=1.5: expected a number from 1"),
        ({"nodes": 0}, "nodes=0: expected a number from 1"),
        ({"labels": -5}, "labels=-5: expected a whole number from 0 to 1,000,000"),
        ({"channels": "x"}, "channels='x': expected a whole number from 0 to 1,000,000"),
        ({"strategy": "ddp"}, "strategy='ddp': not DeepSpeed's; expected one of zero1, "),
    ],
)
def test_what_is_wrong_is_named_as_it_was_given(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        deepspeed_config(**{"strategy": "zero3", "processes": 2, "model": "cnn", **given})
    assert str(refused.value).startswith(sentence)
