"""The attribution of whole comparisons: who is explained against whom, and when nothing may be said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab.user_error import UserError
from tests.codes import find_codes
from tests.stratlab.compare.building import Report, build, edit, judge, rows_of


def find_pairs(report: Report) -> list[tuple[str, str, bool]]:
    return [(pair["run"], pair["baseline"], pair["comparable"]) for pair in report["attribution"]["pairs"]]


def test_the_fastest_is_the_baseline_and_the_parts_sum_to_the_measured_difference(tmp_path: Path) -> None:
    report = judge(tmp_path, ["ddp", "fsdp", "zero2"])
    rows = rows_of(report)
    assert find_pairs(report) == [("fsdp", "ddp", True), ("zero2", "ddp", True)]
    for pair in report["attribution"]["pairs"]:
        measured = rows[pair["run"]]["step_time_ms_p50"] - rows["ddp"]["step_time_ms_p50"]
        assert pair["difference_ms"] == measured
        assert sum(row["ms"] for row in pair["parts"]) == pytest.approx(measured, abs=1e-9)
        assert pair["main_cause"] == "more_communication" == rows[pair["run"]]["main_cause"]
    assert rows["fsdp"]["speedup_vs_baseline"] == pytest.approx(11.31 / 13.81, rel=1e-3)


def test_a_baseline_can_be_asked_for_also_as_a_page_shows_it(tmp_path: Path) -> None:
    report = judge(tmp_path, ["ddp", "fsdp", "zero2"], {"baseline": "fsdp"})
    assert find_pairs(report) == [("ddp", "fsdp", True), ("zero2", "fsdp", True)]
    pair = report["attribution"]["pairs"][0]
    assert pair["difference_ms"] < 0 and pair["remedy"] == "" and pair["main_cause"] == "more_communication"
    with pytest.raises(UserError) as refused:
        judge(tmp_path, asked={"baseline": "zero3"})
    assert find_codes(refused.value) == ["SL-baseline-unknown"] and "zero2" in str(refused.value)
    long = {f"demo-long-{name}": {"strategy": name} for name in ("ddp", "fsdp")}
    assert find_pairs(judge(tmp_path / "long", long, {"baseline": "fsdp"}))[0][1] == "demo-long-fsdp"


def test_runs_that_are_not_comparable_are_explained_with_a_warning_only(tmp_path: Path) -> None:
    report = judge(tmp_path, {"ddp": {}, "fsdp": {}, "single": {}, "zero2": {"data_sha256": None}})
    pairs = {pair["run"]: pair for pair in report["attribution"]["pairs"]}
    assert pairs["fsdp"]["comparable"] and pairs["zero2"]["differing"] == ["data_sha256"]
    assert not pairs["single"]["comparable"] and "world_size" in pairs["single"]["differing"]
    assert pairs["single"]["main_cause"] is None and pairs["single"]["remedy"] == ""
    assert "world_size" in pairs["single"]["sentence"] and rows_of(report)["single"]["main_cause"] is None


@pytest.mark.parametrize(
    "change",
    [
        {"parts": None},  # of an older version
        {"parts": [{"part": "compute", "ms": None}]},
        {"parts": [7]},
        {"parts": [{"part": "compute", "ms": 3.0}]},  # not the sum of its step
        {"source": "cpu"},
        None,  # no analysis at all
    ],
)
def test_what_cannot_be_subtracted_is_not_attributed(tmp_path: Path, change: dict[str, Any] | None) -> None:
    file = build(tmp_path, ["ddp", "fsdp"]) / "fsdp" / "analysis" / "report.json"
    if change is None:
        file.unlink()
    else:
        edit(file, lambda content: content.update(change))
    found = judge(tmp_path)["attribution"]
    assert found["pairs"] == [] and found["not_attributed"][0]["run"] == "fsdp"
    assert found["not_attributed"][0]["why"]


def test_of_repeats_the_one_in_the_middle_speaks(tmp_path: Path) -> None:
    runs = {
        f"{strategy}-{i}": {"samples_per_s": factor * speed}
        for i, speed in enumerate((1000.0, 1010.0, 990.0))
        for strategy, factor in (("ddp", 1.0), ("fsdp", 0.8))
    }
    report = judge(tmp_path, runs)
    assert find_pairs(report) == [("fsdp-0", "ddp-0", True)]
    noise_ms = report["attribution"]["pairs"][0]["noise_ms"]
    assert noise_ms == pytest.approx(2.776 * 0.01 * (64**2 + 80**2) ** 0.5, rel=1e-3)


def test_a_repeat_with_another_seed_does_not_hide_what_is_comparable(tmp_path: Path) -> None:
    """ddp-again has another seed, and is faster: fsdp is explained against the run that it may be."""
    runs = {"ddp": {}, "fsdp": {}, "ddp-again": {"seed": 1, "samples_per_s": 9000.0}}
    assert find_pairs(judge(tmp_path, runs)) == [("fsdp", "ddp", True)]
    assert find_pairs(judge(tmp_path, asked={"baseline": "ddp-again"})) == [("fsdp", "ddp-again", False)]
