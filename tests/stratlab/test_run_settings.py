"""What a value of `run.config` must look like, in words."""

from __future__ import annotations

import pytest

from stratlab.run_settings import SETTINGS, find_problem

FREE = {"default", "description", "type", "minLength", "maxLength"}


def test_every_default_is_taken() -> None:
    texts = {name: str(entry["default"]) for name, entry in SETTINGS.items()}
    assert [name for name, text in texts.items() if find_problem(name, text)] == []
    taken = {name for name in SETTINGS if not find_problem(name, "\n nonsense")}
    assert all(set(SETTINGS[name]) <= FREE for name in taken)


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("strategy", "fsdpp", "fsdp?"),
        ("model_layers", "1001", "0 to 1000"),
        ("micro_batch_size", "9" * 5000, "1 to 1000000000"),
        ("momentum", "1", "1"),
        ("packing", "yes", "true or false"),
    ],
)
def test_what_is_expected_is_said(name: str, text: str, named: str) -> None:
    assert named in find_problem(name, text)
