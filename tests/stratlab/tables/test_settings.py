"""The table of settings against the trainer that it is made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratlab.tables.settings import SETTINGS, find_problem
from trainer.settings.schema import schema


def test_what_the_tools_read_is_the_trainer_s_schema() -> None:
    assert json.loads(Path("stratlab/tables/settings.json").read_text()) == schema(), "make schema"


@pytest.mark.parametrize("name", SETTINGS)
def test_a_default_is_taken_and_nonsense_is_not(name: str) -> None:
    default = SETTINGS[name]["default"]
    text = str(default).lower() if isinstance(default, bool) else str(default)
    assert find_problem(name, text) == ""
    is_free = set(SETTINGS[name]) <= {"default", "description", "type", "minLength", "maxLength"}
    assert is_free or find_problem(name, "\n nonsense").startswith(("expected ", "did you mean "))


@pytest.mark.parametrize(
    ("name", "text", "wish"),
    [
        ("strategy", "fsdpp", "did you mean fsdp? expected one of single, ddp, fsdp,"),
        ("model_layers", "1001", "expected a whole number from 0 to 1000"),
        ("micro_batch_size", "9" * 5000, "expected a whole number from 1 to 1000000000"),
        ("momentum", "1", "expected a number from 0 below 1"),
        ("packing", "yes", "expected true or false"),
    ],
)
def test_what_is_expected_is_said(name: str, text: str, wish: str) -> None:
    assert find_problem(name, text).startswith(wish)
