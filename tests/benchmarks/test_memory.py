"""The configurations whose memory is counted, and how a count is judged; nothing is counted here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.host_tax_before import interval
from benchmarks.memory.arithmetic import BUCKETS_GIB, SIZES, reckon
from benchmarks.memory.configurations import CONFIGURATIONS, SMALLEST, Configuration
from benchmarks.memory.report import RECORD, Report, compare
from trainer.counting.rules import read_countable

SHARDED = "model=vit_huge strategy=fsdp"
ALONE = {"peak": 20.0, "parameters": 3.0, "gradients": 3.0, "optimizer state": 6.0}
ALONE |= dict.fromkeys(("master copies", "gradient buckets"), 0.0)


def test_every_configuration_can_be_counted_and_has_a_name_and_figures_of_its_own() -> None:
    for one in CONFIGURATIONS:
        named = dict(setting.split("=", 1) for setting in f"run=x {one.settings}".split())
        env = {f"TRAINER_{name.upper()}": value for name, value in named.items()}
        per_node = 4 if "strategy=zeropp" in one.settings else one.ranks  # hpz is refused on one node
        read_countable(env, one.ranks, one.rank, per_node)
    names = [one.name for one in CONFIGURATIONS]
    assert set(json.loads(RECORD.read_text())["gib"]) == set(names) and len(set(names)) == len(names)
    assert {*SMALLEST, *(one.alone for one in CONFIGURATIONS)} - {""} < set(names)


def test_arithmetic_shards_the_state_and_adds_the_blocks_in_use_and_the_work() -> None:
    sizes = SIZES["vit_huge"]
    in_use = (2 * (sizes.root + 2 * sizes.block) + 4 * sizes.block) / 2**30
    for settings, gib in (
        (SHARDED, 8.0 + sizes.gib / 2 + in_use),
        (f"{SHARDED} dp_shard=4", 8.0 + sizes.gib + in_use),
        ("model=vit_huge strategy=zero2", 8.0 + sizes.gib * (1 + 4 / 8) + BUCKETS_GIB),
    ):
        assert reckon(Configuration("x", settings), ALONE) == pytest.approx(gib)


def test_a_figure_out_of_one_percent_is_told() -> None:
    found = [
        compare({"peak": 10.0}, {"peak": counted})["peak"]["inside"] for counted in (10.09, 9.91, 10.11, 9.89)
    ]
    assert found == [True, True, False, False]


def test_the_report_keeps_what_it_has_counted_of_the_same_code(tmp_path: Path) -> None:
    one, other = Configuration("one", "a=1"), Configuration("other", "a=2")
    recorded = {"gib": {"one": {"peak": 2.0}, "other": {"peak": 2.0}}}
    path, found = tmp_path / "memory.json", {"gib": {"peak": 2.01}, "cpu_s": 1.0}
    report = Report(path, {"trainer_sha256": "1"}, recorded)
    report.add(one, found)
    assert report.judge([one]) == 0
    again = Report(path, {"trainer_sha256": "1"}, recorded)
    assert [again.has(each) for each in (one, other, Configuration("one", "a=3"))] == [True, False, False]
    assert not Report(path, {"trainer_sha256": "2"}, recorded).has(one)
    again.add(other, {"gib": {"peak": 3.0}, "cpu_s": 1.0})
    assert again.judge([one, other]) == 1
    again.add(other, {"failed": "ValueError: x"})
    assert again.judge([other]) == 1 and not again.has(other)


@pytest.mark.parametrize(
    ("more", "named"),
    [({"at_most_gib": 9.5}, "9.5"), ({"alone": "one process"}, "'one process'"), ({"name": "new"}, "new")],
)
def test_what_is_promised_or_missing_is_told(tmp_path: Path, capsys, more: dict, named: str) -> None:
    one = Configuration(**{"name": "one", "settings": SHARDED} | more)
    report = Report(tmp_path / "memory.json", {}, {"gib": {"one": {"peak": 10.0}}})
    report.add(one, {"gib": {"peak": 10.0}, "cpu_s": 1.0})
    assert report.judge([one]) == 1 and named in capsys.readouterr().out


def test_a_peak_above_arithmetic_is_told(tmp_path: Path) -> None:
    alone, one = Configuration("alone", "a=1"), Configuration("one", SHARDED, alone="alone")
    expected = reckon(one, ALONE)
    report = Report(tmp_path / "memory.json", {}, {"gib": {"alone": ALONE, "one": {"between": 1.0}}})
    report.add(alone, {"gib": ALONE, "cpu_s": 1.0})
    for share, code in ((0.96, 0), (1.04, 0), (1.06, 1)):
        report.add(one, {"gib": {"peak": expected * share, "between": 1.0}, "cpu_s": 1.0})
        assert report.judge([alone, one]) == code


def test_the_interval_of_three_turns_by_hand() -> None:
    half = 4.30 / 3**0.5
    assert interval([1.0, 2.0, 3.0]) == (2.0, pytest.approx(2 - half), pytest.approx(2 + half))
