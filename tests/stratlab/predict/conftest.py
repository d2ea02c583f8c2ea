"""The verb, called in this process."""

import json
from functools import partial

import pytest


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/stratlab/operations"


@pytest.fixture
def call(stratlab):
    return partial(stratlab, "predict")


@pytest.fixture
def answers(call):
    def ask(*arguments):
        return {one["name"]: one for one in json.loads(call(*arguments, "--json")[1])}

    return ask
