"""The table of stages, and how time is shared among them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.gpu.stages import PART_LIMIT_S, PARTS, STAGES, UnknownStage, choose_stages, share_time

FOLDER = Path("benchmarks/gpu")


def test_every_part_fits_into_nine_minutes():
    for part in PARTS:
        assert sum(stage.budget_s for stage in STAGES if stage.part == part) <= PART_LIMIT_S == 540


def test_every_stage_has_a_module_of_its_name_with_a_run():
    for stage in STAGES:
        tree = ast.parse((FOLDER / f"{stage.name}.py").read_text())
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert [a.arg for a in functions["run"].args.args] == ["session"], stage.name


def test_stages_have_the_names_that_were_promised():
    wanted = {"environment", "numerics", "ceilings", "project", "traces", "peers", "ab", "gloo", "capacity"}
    names = [stage.name for stage in STAGES]
    assert wanted <= set(names) and len(names) == len(set(names))


def test_parts_are_in_the_table_s_order():
    assert [stage.part for stage in STAGES] == sorted(stage.part for stage in STAGES) and PARTS == (
        1,
        2,
        3,
        4,
        5,
    )


def test_stages_are_chosen_by_name_by_part_or_all():
    assert choose_stages() == STAGES
    assert [stage.name for stage in choose_stages("ab, numerics")] == ["numerics", "ab"]
    assert {stage.part for stage in choose_stages(part=4)} == {4}


@pytest.mark.parametrize(
    ("names", "part", "sentence"),
    [
        ("numeric", None, "STAGES=numeric: not known; allowed: environment, numerics"),
        ("", 6, "PART=6: not known; allowed: 1, 2, 3, 4, 5"),
        ("ab", 1, "STAGES=ab and PART=1: give one of the two"),
    ],
)
def test_what_is_not_in_the_table_is_named(names, part, sentence):
    with pytest.raises(UnknownStage, match=sentence):
        choose_stages(names, part)


def test_a_stage_may_use_what_is_left_over_but_not_what_comes_after():
    first, second, *_ = STAGES
    both = (first, second)
    whole = first.budget_s + second.budget_s
    assert share_time(both, whole) == first.budget_s
    assert share_time(both, whole + 7) == first.budget_s + 7
    assert share_time((second,), second.budget_s + 20) == second.budget_s + 20
    assert share_time(both, 4) == 4
