"""A knob that a strategy does not have is refused before anything starts, with those that it has."""

from __future__ import annotations

from typing import Any

import pytest

from stratlab.rendering.helm import REPOSITORY
from stratlab.sweep.definition import Sweep
from stratlab.sweep.tuning.knobs import ROUNDING, check_knobs, list_knobs
from stratlab.user_error import UserError
from tests.codes import find_codes
from trainer.settings.strategy_table import STRATEGIES


def sweep(**knobs: Any) -> Sweep:
    return Sweep.model_validate(
        {
            "comparison": "demo",
            "matrix": {"strategy": ["ddp", "fsdp", "single", "llm-2d"]},
            "charts": str(REPOSITORY / "charts"),
            "tune": {
                "steps": 30,
                "knobs": {name.replace("_", "-"): values for name, values in knobs.items()},
            },
        }
    )


def test_the_knobs_are_those_of_the_trainer() -> None:
    for name, row in STRATEGIES.items():
        assert list_knobs(name) == [knob for knob in row.knobs if knob != ROUNDING]


def test_every_wrong_knob_is_told_with_what_is_allowed() -> None:
    check_knobs(sweep(ddp={"static_graph": [True]}, llm_2d={"prefetch_blocks": [2]}), REPOSITORY)
    wrong = sweep(
        ddp={"prefetch_blocks": [2], "activation_checkpointing": ["blocks"]},
        fsdp={"reduce_dtype": ["bf16"]},
        single={"static_graph": [True]},
    )
    with pytest.raises(UserError) as failure:
        check_knobs(wrong, REPOSITORY)
    lines = str(failure.value).splitlines()[1:]
    assert find_codes(lines) == ["SL-tune-no-knob", "SL-tune-no-knob", "SL-tune-rounding", "SL-tune-no-knob"]
    assert "ddp: prefetch_blocks" in lines[0] and "reduce_bucket_mib, static_graph" in lines[0]
    assert "fsdp: reduce_dtype" in lines[2] and "single: static_graph" in lines[3]
