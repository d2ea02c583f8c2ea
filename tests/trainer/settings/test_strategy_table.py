"""The table of strategies against what it is read by: engines, charts, the advice."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from stratlab_spec.settings.config import Config
from stratlab_spec.strategies import CHART_NAME, STRATEGIES, resolve_knobs


def test_the_chart_maker_takes_the_names_of_this_table() -> None:
    assert f'"{CHART_NAME}"' in Path("charts/new_chart.py").read_text()
    assert not re.fullmatch(CHART_NAME, "fsdp_eager") and re.fullmatch(CHART_NAME, "fsdp-eager")


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_has_a_file_and_a_chart_that_says_what_it_is(name: str) -> None:
    assert find_spec(f"trainer.strategies.{STRATEGIES[name].file}")
    chart = Path("charts") / ("llm-2d" if name == "nd" else name)
    config = yaml.safe_load((chart / "values.yaml").read_text())["run"]["config"]
    assert config["strategy"] == name
    own = STRATEGIES[name].defaults
    assert {knob: config.get(knob, value) for knob, value in own.items()} == own
    described = yaml.safe_load((chart / "Chart.yaml").read_text())["description"]
    assert described != f"Strategy {name}.", f"{chart}: say in its description what is sharded"


NAMED_IN_ENGINE = {"zeropp"}
"""Whose name its engine's file reads (trainer/strategies/zero.py)."""


def test_no_strategy_is_another_one_under_a_second_name() -> None:
    found: dict[str, str] = {}
    for name in STRATEGIES.keys() - NAMED_IN_ENGINE:
        row = STRATEGIES[name]
        what = repr((row.file, row.axes, row.deepspeed_stage, sorted(row.defaults.items())))
        assert found.setdefault(what, name) == name, "its row's file, axes and defaults are the same"


def test_a_row_can_give_a_knob_another_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a strategy of a present file is another one without its chart too."""
    kept = replace(STRATEGIES["fsdp"], defaults={"reshard_after_forward": "off"})
    monkeypatch.setitem(STRATEGIES, "fsdp", kept)
    assert Config(run="r", strategy="fsdp").reshard_after_forward == "off"
    assert Config(run="r", strategy="fsdp", reshard_after_forward="on").reshard_after_forward == "on"
    assert Config(run="r", strategy="hsdp").reshard_after_forward == "auto"
    assert resolve_knobs(Config(run="r", strategy="fsdp"))["reshard_after_forward"] == "off"


def test_the_ways_to_less_end() -> None:
    """Whoever follows the advice comes to an end, and never back."""
    for column in ("holds_less", "sends_less"):
        for name in STRATEGIES:
            seen = [name]
            while following := getattr(STRATEGIES[seen[-1]], column):
                assert following not in seen
                seen.append(following)


def test_the_readme_tells_when_to_take_each() -> None:
    readme = Path("README.md").read_text()
    missing = [name for name in STRATEGIES if f"\n| `{name}` |" not in readme]
    # nd is behind the charts llm-1d to llm-5d
    assert missing == ["nd"], f"README.md, the table under 'Strategies': no row of {missing[:-1]}"
