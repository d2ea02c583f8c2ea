"""Each gate, on figures that hold and on figures that do not."""

from __future__ import annotations

import pytest

from benchmarks.gpu.gates import GATES, judge_lines

DONE = {"item": "x", "status": "done"}
COMPILED = {"COMPILE": "true"}
RUN = {
    **DONE,
    "stage": "project",
    "model": "vit_base",
    "strategy": "single",
    "settings": COMPILED,
    "mfu_pct": 36.0,
}
CASES = [
    ({"stage": "environment", "cudnn": 91900}, {"cudnn": 91400}),
    ({"stage": "environment", "not_fused": []}, {"not_fused": ["vit_huge T257 hd80"]}),
    (
        {"stage": "numerics", "errors": {"sdpa": {"out": 4e-3}, "flash": "not here"}},
        {"errors": {"sdpa": {"dk": 0.3}}},
    ),
    ({**RUN, "falls": True}, {"falls": False}),
    ({**RUN, "finite": True}, {"finite": False}),
    ({**RUN, "alloc_retries": 0}, {"alloc_retries": 2}),
    ({**RUN, "forecast_memory_error_pct": -2.9}, {"forecast_memory_error_pct": -3.1}),
    ({"stage": "quantizer", "numbers_differ": 1e-4}, {"numbers_differ": 2e-3}),
    ({"stage": "quantizer", "exact": True}, {"exact": False}),
    (RUN, {"mfu_pct": 34.0}),
    (RUN, {"mfu_pct": None}),
    ({"stage": "gloo", "loss_error": 1e-7}, {"loss_error": "nan"}),
    ({"stage": "stops", "item": "fsdp stopped, goes on", "loss_error": 0.0}, {"loss_error": 2e-3}),
    ({"stage": "stops", "item": "fsdp stopped, goes on", "steps_lost": 0}, {"steps_lost": 1}),
]


@pytest.mark.parametrize(("good", "change"), CASES)
def test_a_gate_holds_and_fails(good, change):
    good = {**DONE, **good}
    assert all(verdict.passed for verdict in judge_lines([good], "cuda")) and judge_lines([good], "cuda")
    assert not all(verdict.passed for verdict in judge_lines([{**good, **change}], "cuda"))


def test_every_gate_is_tried_here():
    lines = [{**DONE, **good} for good, _ in CASES]
    assert {verdict.gate for verdict in judge_lines(lines, "cuda")} == {gate.text for gate in GATES}


def test_a_run_that_was_killed_may_lose_steps():
    assert (
        judge_lines([{**DONE, "stage": "stops", "item": "fsdp killed, goes on", "steps_lost": 16}], "cuda")
        == []
    )


def test_an_error_that_is_not_a_number_fails():
    line = {**DONE, "stage": "numerics", "errors": {"sdpa": {"out": "nan"}}}
    assert [verdict.passed for verdict in judge_lines([line], "cpu")] == [False]


def test_figures_of_a_cpu_are_not_judged():
    line = {**RUN, "mfu_pct": 1.0, "falls": True}
    assert [verdict.gate for verdict in judge_lines([line], "cpu")] == ["the loss falls"]


def test_the_floor_is_that_of_a_model_alone_with_compiled_blocks():
    for change in ({"strategy": "fsdp"}, {"settings": {}}, {"model": "vit_small"}):
        assert judge_lines([{**RUN, "mfu_pct": 1.0, **change}], "cuda") == []


def test_what_was_not_done_is_not_judged():
    assert judge_lines([{**RUN, "status": "out_of_memory", "mfu_pct": None}], "cuda") == []
