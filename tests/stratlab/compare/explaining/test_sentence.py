from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from stratlab.analysis.measuring.gaps import Kind
from stratlab.compare.explaining.attribution import build_pair
from stratlab.compare.explaining.causes import CAUSES, HOST_REMEDIES, NOT_TRACED, SLOW_LINK
from stratlab.compare.explaining.sentence import format_ms
from stratlab.compare.explaining.traced_step import TracedStep
from tests.stratlab.compare.explaining.small_steps import ALL_GATHER, ALL_REDUCE, DDP, build_step
from trainer.settings.config import Config

SETTING = re.compile(r"run\.config\.(\w+)(?:=(\w+))?")


def say(run: TracedStep, base: TracedStep, **options: Any) -> str:
    return str(build_pair(("zero3", run, run.step_ms), ("ddp", base, base.step_ms), **options)["sentence"])


def test_the_sentence_names_the_size_the_causes_in_order_and_the_remedy() -> None:
    base = build_step({**DDP, "compute": 51.0}, {ALL_REDUCE: 10.0})
    run = build_step({**DDP, "compute": 53.0, "host": 10.0, "data": 9.0}, {ALL_GATHER: 34.0, ALL_REDUCE: 2.0})
    assert say(run, base) == (
        "zero3 is 41 ms (59 %) slower per step than ddp: 34 ms exposed all-gather, 7.0 ms waiting for data, "
        "6.0 ms waiting for the host; partly offset by 8.0 ms less exposed all-reduce; remedy: "
        + CAUSES["more_communication"].remedy
        + "."
    )


@pytest.mark.parametrize(
    ("own", "exposed", "total", "words"),
    [
        ({"compute": 90.0}, 10.0, 10.0, "30 ms compute; remedy: compare the kernels"),
        ({"copy": 31.0}, 10.0, 10.0, "30 ms copies; remedy: run.config.data_residence=device"),
        ({"data": 32.0}, 10.0, 10.0, "30 ms waiting for data; remedy: run.config.data_residence"),
        ({"host": 34.0}, 10.0, 10.0, "30 ms waiting for the host; remedy: look in the merged"),
        (
            {"straggler": 31.0},
            10.0,
            10.0,
            "30 ms waiting for the last rank (rank 1); remedy: look at the slow rank",
        ),
        ({"kernel_wait": 30.5}, 10.0, 10.0, "30 ms other idle; remedy: look for gaps"),
        ({"bubble": 30.0}, 10.0, 10.0, "30 ms pipeline bubble; remedy: more micro-batches"),
        ({}, 40.0, 40.0, f"30 ms exposed all-reduce (the same bytes, slower); remedy: {SLOW_LINK}"),
        ({}, 10.0, 10.0, "no cause can be named"),
    ],
)
def test_each_cause_has_its_words_and_its_remedy(
    own: dict[str, float], exposed: float, total: float, words: str
) -> None:
    base = build_step(DDP, {ALL_REDUCE: 10.0})
    assert words in say(build_step({**DDP, **own}, {ALL_REDUCE: exposed}, {ALL_REDUCE: total}), base)


@pytest.mark.parametrize("kind", [*get_args(Kind), None, "of a later version"])
def test_what_helps_a_waiting_device_depends_on_its_gaps(kind: str | None) -> None:
    """As in the run's own report: only many short gaps mean that less should be launched."""
    base = build_step(DDP, {ALL_REDUCE: 10.0}, gap_kind="short", gap_label=None)
    run = build_step({**DDP, "host": 34.0}, {ALL_REDUCE: 10.0}, gap_kind=kind, gap_label="tokenize {it}")
    pair = build_pair(("zero3", run, run.step_ms), ("ddp", base, base.step_ms))
    assert pair["main_cause"] == "host" and pair["gap_kind"] == kind
    assert ("compile" in pair["remedy"]) == (kind == "short")
    assert ("tokenize {it}" in pair["remedy"]) == (kind == "label")
    told = {each: HOST_REMEDIES.get(each, CAUSES["host"].remedy) for each in get_args(Kind)}
    assert len(set(told.values())) == len(told) and pair["remedy"] in pair["sentence"]


def test_overlap_that_is_lost_is_told_from_a_slow_link() -> None:
    base = build_step(DDP, {ALL_REDUCE: 10.0}, {ALL_REDUCE: 40.0})
    said = say(build_step(DDP, {ALL_REDUCE: 40.0}, {ALL_REDUCE: 40.0}), base)
    assert (
        "30 ms exposed all-reduce (less of it hidden behind compute); remedy: give it compute to hide behind"
        in said
    )


@pytest.mark.parametrize(
    ("host", "words"),
    (
        (630.0, "zero3 is 626 ms (792 %) slower per step than ddp: "),
        (720.0, "zero3 takes 10 times as long per step as ddp (716 ms more): "),
        (300_000.0, "zero3 takes 3,798 times as long per step as ddp (299,996 ms more): "),
    ),
)
def test_what_takes_many_times_as_long_is_no_percentage(host: float, words: str) -> None:
    said = say(build_step({**DDP, "host": host}, {ALL_REDUCE: 10.0}), build_step(DDP, {ALL_REDUCE: 10.0}))
    assert said.startswith(words)


def test_small_parts_are_left_to_the_table() -> None:
    base = build_step(DDP, {ALL_REDUCE: 10.0})
    said = say(build_step({**DDP, "host": 34.0, "data": 5.0, "copy": 0.0}, {ALL_REDUCE: 10.0}), base)
    assert ": 30 ms waiting for the host; remedy" in said and "data" not in said.partition("remedy")[0]


def test_the_warning_comes_first() -> None:
    base, run = build_step(DDP, {ALL_REDUCE: 10.0}), build_step({**DDP, "host": 34.0}, {ALL_REDUCE: 10.0})
    said = say(run, base, differing=["seed", "image"])
    assert said.startswith(
        "Not comparable, no finding: they differ in seed, image. zero3 is 30 ms (38 %) slower"
    )
    assert "remedy" not in said


def test_every_cause_has_words_and_every_setting_in_a_remedy_exists() -> None:
    texts = [cause.remedy for cause in CAUSES.values()] + [SLOW_LINK, *HOST_REMEDIES.values()]
    found = [match for text in texts for match in SETTING.findall(text)]
    assert len(found) > 10
    for name, value in found:
        field = Config.model_fields[name]
        allowed = {str(choice).lower() for choice in get_args(field.annotation)} or {"true", "false"}
        patterns = [rule.pattern for rule in field.metadata if hasattr(rule, "pattern")]
        fits = any(re.match(pattern, value) for pattern in patterns) if patterns else value in allowed
        assert not value or fits, f"{name}={value}"
    strategies = get_args(Config.model_fields["strategy"].annotation)
    assert {"hsdp", "zero2", "zero3", "fsdp", "ddp"} <= set(strategies)
    assert all(cause.remedy for name, cause in CAUSES.items() if name != NOT_TRACED)


@pytest.mark.parametrize(
    ("ms", "text"), [(31.4, "31 ms"), (3.14, "3.1 ms"), (0.314, "0.31 ms"), (1234, "1,234 ms")]
)
def test_milliseconds_for_a_reader(ms: float, text: str) -> None:
    assert format_ms(ms) == text
