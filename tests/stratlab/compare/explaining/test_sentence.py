"""The sentence about a pair: its size, its causes in order, and a remedy that the trainer knows."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from stratlab.analysis.step_rows import Kind
from stratlab.compare.attribution import build_pair
from stratlab.compare.causes import CAUSES, HOST_REMEDIES, NOT_TRACED, SLOW_LINK, format_ms
from stratlab.compare.step_difference import TracedStep
from stratlab_spec.settings.config import Config
from tests.stratlab.compare.explaining.small_steps import ALL_GATHER, ALL_REDUCE, DDP, build_step

SETTING = re.compile(r"run\.config\.(\w+)(?:=(\w+))?")
BASE = build_step(DDP, {ALL_REDUCE: 10.0})


def explain(run: TracedStep, base: TracedStep = BASE, **options: Any) -> dict[str, Any]:
    return build_pair(("zero3", run, run.step_ms), ("ddp", base, base.step_ms), **options)


def test_the_sentence_names_the_size_the_causes_in_order_and_the_remedy() -> None:
    base = build_step({**DDP, "compute": 51.0}, {ALL_REDUCE: 10.0})
    run = build_step({**DDP, "compute": 53.0, "host": 10.0, "data": 9.0}, {ALL_GATHER: 34.0, ALL_REDUCE: 2.0})
    said = explain(run, base)["sentence"]
    numbers = re.findall(r"[\d.]+ (?:ms|%)", said.partition("remedy")[0])
    assert numbers == ["41 ms", "59 %", "34 ms", "7.0 ms", "6.0 ms", "8.0 ms"], (
        "compute, 2 ms, is left to the table"
    )
    assert said.startswith("zero3 ") and CAUSES["more_communication"].remedy in said


@pytest.mark.parametrize(
    ("own", "exposed", "total", "cause", "remedy"),
    [
        ({"compute": 90.0}, 10.0, 10.0, "compute", None),
        ({"copy": 31.0}, 10.0, 10.0, "copies", None),
        ({"data": 32.0}, 10.0, 10.0, "data", None),
        ({"host": 34.0}, 10.0, 10.0, "host", None),
        ({"straggler": 31.0}, 10.0, 10.0, "straggler", None),
        ({"kernel_wait": 30.5}, 10.0, 10.0, "idle", None),
        ({"bubble": 30.0}, 10.0, 10.0, "bubble", None),
        ({}, 40.0, 40.0, "more_communication", SLOW_LINK),  # the same bytes, slower
        ({}, 10.0, 10.0, None, ""),
    ],
)
def test_each_cause_has_its_remedy(
    own: dict[str, float], exposed: float, total: float, cause: str | None, remedy: str | None
) -> None:
    pair = explain(build_step({**DDP, **own}, {ALL_REDUCE: exposed}, {ALL_REDUCE: total}))
    assert pair["main_cause"] == cause
    wanted = CAUSES[cause].remedy if cause and remedy is None else remedy
    assert pair["remedy"] == wanted and pair["remedy"] in pair["sentence"]
    assert cause is None or "30 ms" in pair["sentence"]


def test_overlap_that_is_lost_is_told_from_a_slow_link() -> None:
    base = build_step(DDP, {ALL_REDUCE: 10.0}, {ALL_REDUCE: 40.0})
    pair = explain(build_step(DDP, {ALL_REDUCE: 40.0}, {ALL_REDUCE: 40.0}), base)
    assert pair["main_cause"] == "less_overlap" and pair["remedy"] == CAUSES["less_overlap"].remedy


@pytest.mark.parametrize("kind", [*get_args(Kind), "of a later version"])
def test_what_helps_a_waiting_device_depends_on_its_gaps(kind: str) -> None:
    """As in the run's own report: only many short gaps mean that less should be launched."""
    run = build_step({**DDP, "host": 34.0}, {ALL_REDUCE: 10.0}, gap_kind=kind, gap_label="tokenize {it}")
    pair = explain(run)
    assert pair["main_cause"] == "host" and pair["gap_kind"] == kind
    assert ("compile" in pair["remedy"]) == (kind == "short")
    assert ("tokenize {it}" in pair["remedy"]) == (kind == "label")
    told = {HOST_REMEDIES.get(each, CAUSES["host"].remedy) for each in get_args(Kind)}
    assert len(told) == len(get_args(Kind))


@pytest.mark.parametrize(("host", "told"), [(630.0, ["626", "792"]), (720.0, ["10", "716"])])
def test_what_takes_many_times_as_long_is_no_percentage(host: float, told: list[str]) -> None:
    said = explain(build_step({**DDP, "host": host}, {ALL_REDUCE: 10.0}))["sentence"]
    assert re.findall(r"\d+", said.removeprefix("zero3"))[:2] == told


def test_a_pair_that_is_not_comparable_has_no_remedy() -> None:
    run = build_step({**DDP, "host": 34.0}, {ALL_REDUCE: 10.0})
    pair = explain(run, differing=["seed", "image"])
    assert "seed, image" in pair["sentence"] and pair["remedy"] == "" and not pair["comparable"]


def test_every_cause_has_a_remedy_and_every_setting_in_one_exists() -> None:
    texts = [cause.remedy for cause in CAUSES.values()] + [SLOW_LINK, *HOST_REMEDIES.values()]
    found = [match for text in texts for match in SETTING.findall(text)]
    assert len(found) > 10 and all(cause.remedy for name, cause in CAUSES.items() if name != NOT_TRACED)
    for name, value in found:
        field = Config.model_fields[name]
        allowed = {str(choice).lower() for choice in get_args(field.annotation)} or {"true", "false"}
        patterns = [rule.pattern for rule in field.metadata if hasattr(rule, "pattern")]
        fits = any(re.match(pattern, value) for pattern in patterns) if patterns else value in allowed
        assert not value or fits, f"{name}={value}"


def test_milliseconds_for_a_reader() -> None:
    assert [format_ms(ms) for ms in (31.4, 3.14, 0.314, 1234)] == ["31 ms", "3.1 ms", "0.31 ms", "1,234 ms"]
