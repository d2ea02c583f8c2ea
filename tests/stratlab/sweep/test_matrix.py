"""Combinations, their names, and the values that they give to helm."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratlab.sweep.definition import Sweep
from stratlab.sweep.planned_release import LONGEST_NAME, expand
from tests.codes import find_codes
from tests.stratlab.raised import raised

NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # what charts/run asks of a release


def build(matrix: dict[str, list[Any]], **changes: Any) -> Sweep:
    return Sweep(**{"comparison": "demo", "matrix": {"strategy": ["ddp"]} | matrix} | changes)


def names(sweep: Sweep) -> list[str]:
    return [release.name for release in expand(sweep)]


def test_every_combination_once_and_the_repeats_last() -> None:
    sweep = build({"strategy": ["ddp", "fsdp"], "run.config.model": ["cnn", "vit_tiny"]}, repeats=2)
    once = ["demo-ddp-cnn", "demo-ddp-vit-tiny", "demo-fsdp-cnn", "demo-fsdp-vit-tiny"]
    assert names(sweep) == [*once, *(f"{name}-r2" for name in once)]
    first, *_, last = expand(sweep)
    assert (first.strategy, first.repeat, last.strategy, last.repeat) == ("ddp", 1, "fsdp", 2)
    assert first.values == {"run": {"config": {"model": "cnn", "comparison": "demo"}}}
    assert last.values == {"run": {"config": {"model": "vit_tiny", "comparison": "demo"}}}


def test_excluded_are_those_that_agree_with_all_keys() -> None:
    matrix = {"strategy": ["ddp", "fsdp"], "run.nodes": [1, 2]}
    sweep = build(matrix, exclude=[{"strategy": "fsdp", "run.nodes": 1}])
    assert names(sweep) == ["demo-ddp-nodes1", "demo-ddp-nodes2", "demo-fsdp-nodes2"]
    assert find_codes(raised(expand, build(matrix, exclude=[{"strategy": "ddp"}, {"strategy": "fsdp"}]))) == [
        "SL-exclude-leaves-none"
    ]


def test_numbers_and_switches_carry_their_setting() -> None:
    matrix = {
        "run.config.micro_batch_size": [16],
        "run.processesPerNode": [2],
        "run.config.lr": [0.003],
        "run.config.compile": [True],
        "run.image.tag": ["0.1"],
    }
    assert names(build(matrix)) == ["demo-ddp-mbs16-ppn2-lr0-003-compiletrue-tag0-1"]


def test_values_of_set_and_matrix_meet_in_one_tree() -> None:
    sweep = build(
        {"run.config.model": ["cnn"]},
        set={"run.accelerator": "", "run.resources.limits.nvidia\\.com/gpu": 1, "run.env": [{"name": "A"}]},
    )
    assert expand(sweep)[0].values == {
        "run": {
            "accelerator": "",
            "resources": {"limits": {"nvidia.com/gpu": 1}},
            "env": [{"name": "A"}],
            "config": {"model": "cnn", "comparison": "demo"},
        }
    }


def test_names_that_are_too_long_or_alike_get_a_hash() -> None:
    (only,) = names(build({"run.config.dataset": ["a" * 80]}))
    assert re.fullmatch(r"demo-ddp-a+-[0-9a-f]{8}", only) and len(only) <= LONGEST_NAME
    alike = names(build({"run.config.dataset": ["x/y", "x_y", "z"]}))
    assert alike[2] == "demo-ddp-z" and alike[0] != alike[1]
    assert all(re.fullmatch(r"demo-ddp-x-y-[0-9a-f]{8}", name) for name in alike[:2])
    found = names(build({"run.config.dataset": ["x", "x-r2"]}, repeats=2))
    assert len(set(found)) == 4 and found[2] == "demo-ddp-x-r2", "a value that looks like a repeat is none"


@pytest.mark.parametrize("length", [38, 39])
def test_repeats_have_the_name_of_the_first(length: int) -> None:
    """Also where that is as long as a name may be with the number of a repeat, or longer."""
    first, second, _ = names(build({"run.config.dataset": ["d" * length]}, repeats=3))
    assert second == f"{first}-r2" and (len(first) == 9 + length) is (length <= 38)


@settings(max_examples=40, deadline=None)
@given(
    comparison=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", fullmatch=True),
    values=st.lists(
        st.one_of(st.text(max_size=60), st.integers(), st.booleans()), min_size=1, max_size=6, unique_by=repr
    ),
    repeats=st.sampled_from([1, 2, 100]),
)
def test_every_name_is_one_that_the_chart_takes_and_there_is_no_second(
    comparison: str, values: list[Any], repeats: int
) -> None:
    found = names(build({"run.config.x": values}, comparison=comparison, repeats=repeats))
    assert len(set(found)) == len(found) == len(values) * repeats
    assert all(NAME.fullmatch(name) and len(name) <= LONGEST_NAME for name in found)
