"""The table of expected figures, and how a count is judged by it; nothing is counted here."""

from __future__ import annotations

import pytest

from benchmarks.memory.expected import EXPECTED, SMALLEST, Expected
from benchmarks.memory.report import Report, compare
from trainer.counting.rules import read_countable


def test_every_expected_configuration_can_be_counted_and_has_a_name_of_its_own():
    for one in EXPECTED:
        named = dict(setting.split("=", 1) for setting in f"run=x {one.settings}".split())
        env = {f"TRAINER_{name.upper()}": value for name, value in named.items()}
        per_node = 4 if "strategy=zeropp" in one.settings else one.ranks  # hpz is refused on one node
        read_countable(env, one.ranks, one.rank, per_node)
    names = [one.name for one in EXPECTED]
    assert len(set(names)) == len(names) and set(SMALLEST) < set(names)


@pytest.mark.parametrize(("counted", "inside"), [(10.09, True), (9.91, True), (10.11, False), (9.89, False)])
def test_a_figure_out_of_one_percent_is_told(counted, inside):
    found = compare(Expected("x", "", {"peak": 10.0}), {"peak": counted})
    assert found["peak"]["inside"] is inside


def test_the_report_keeps_what_it_has_counted_of_the_same_code(tmp_path, capsys):
    one, other = Expected("one", "a=1", {"peak": 2.0}), Expected("other", "a=2", {"peak": 2.0})
    path, found = tmp_path / "memory.json", {"gib": {"peak": 2.01}, "cpu_s": 1.0}
    report = Report(path, {"trainer_sha256": "1"})
    report.add(one, found)
    assert report.judge([one]) == 0
    again = Report(path, {"trainer_sha256": "1"})
    assert again.has(one) and not again.has(other) and not again.has(Expected("one", "a=3", {}))
    assert not Report(path, {"trainer_sha256": "2"}).has(one)
    again.add(other, {"gib": {"peak": 3.0}, "cpu_s": 1.0})
    assert again.judge([one, other]) == 1 and "other: peak 3.000 GiB" in capsys.readouterr().out
    again.add(other, {"failed": "ValueError: x"})
    assert again.judge([other]) == 1 and not again.has(other)
