from __future__ import annotations

import random
from pathlib import Path

import pytest

from stratlab.compare.judging.noise import METHOD, NO_BAND, build_band
from tests.stratlab.compare.building import judge, rows_of


def test_a_band_by_hand() -> None:
    """Values 99 and 101: relative deviations 0.01, one degree of freedom, t = 12.706."""
    band = build_band([[99.0, 101.0], [50.0]])
    assert band and (band.degrees, band.repeats) == (1, 2)
    assert band.relative == pytest.approx(12.706 * (2 * 0.01**2) ** 0.5)
    assert band.of_difference(3.0, 4.0) == pytest.approx(5 * band.relative)
    assert band.of_difference(3.0, 4.0, 4, 4) == pytest.approx(2.5 * band.relative)
    assert band.of_difference(3.0, 4.0, 9, 1) == pytest.approx(17**0.5 * band.relative)
    assert build_band([[1.0], [2.0]]) is None and build_band([]) is None


@pytest.mark.parametrize("repeats", [2, 5])
def test_a_difference_by_chance_is_inside_the_band_95_times_in_100(repeats: int) -> None:
    draw, inside = random.Random(repeats), 0
    for _ in range(2000):
        groups = [[draw.gauss(100.0, 2.0) for _ in range(repeats)] for _ in range(2)]
        band = build_band(groups)
        assert band
        a, b = (sum(group) / repeats for group in groups)
        inside += abs(a - b) <= band.of_difference(a, b, repeats, repeats)
    assert 0.935 < inside / 2000 < 0.965


def test_repeats_are_found_by_their_settings_whatever_their_seed(tmp_path: Path) -> None:
    runs = {"ddp-a": {"samples_per_s": 1000.0}, "fsdp": {"samples_per_s": 900.0}}
    alone = judge(tmp_path, runs)["noise"]
    assert (alone["method"], alone["relative_pct"], set(alone["noise_ms"].values())) == (
        NO_BAND,
        None,
        {None},
    )
    report = judge(
        tmp_path, {"ddp-b": {"samples_per_s": 1010.0, "seed": 1}, "ddp-c": {"micro_batch_size": 16}}
    )
    noise = report["noise"]
    assert noise["variants"] == [["ddp-a", "ddp-b"], ["ddp-c"], ["fsdp"]]
    assert (noise["method"], noise["repeats"], noise["degrees"]) == (METHOD, 2, 1)
    assert noise["relative_pct"] == pytest.approx(8.94, abs=0.01)  # t = 12.7 for one pair
    row = rows_of(report)["fsdp"]
    assert row["noise_ms"] == pytest.approx(noise["relative_pct"] / 100 * row["step_time_ms_p50"])


def test_the_noise_of_other_repeats_counts_for_a_single_run(tmp_path: Path) -> None:
    """zero2 was run once; ddp twice, 5 % apart by chance."""
    speeds = {"ddp-a": 1000.0, "ddp-b": 1050.0, "zero2": 940.0}
    report = judge(
        tmp_path, {name: {"samples_per_s": speed, "seed": name == "ddp-b"} for name, speed in speeds.items()}
    )
    group = report["group_winners"][0]
    assert group["runs"] == ["ddp-a", "zero2"] and group["winners"]["samples_per_s"] is None
    assert report["attribution"]["pairs"][0]["no_cause"]


def test_an_unknown_fact_makes_nobody_a_repeat(tmp_path: Path) -> None:
    report = judge(tmp_path, ["ddp-a", "ddp-b"], data_sha256=None)
    assert report["noise"]["variants"] == [["ddp-a"], ["ddp-b"]]
