from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.judging.noise import METHOD, NO_BAND, build_band
from stratlab.compare.reading.comparison_folder import load_runs
from tests.stratlab.example_run import build_run_dir


def test_a_band_by_hand() -> None:
    """Values 99 and 101: relative deviations 0.01, one degree of freedom, t = 12.706."""
    band = build_band([[99.0, 101.0], [50.0]])
    assert band and (band.degrees, band.repeats) == (1, 2)
    assert band.relative == pytest.approx(12.706 * (2 * 0.01**2) ** 0.5)
    assert band.of_difference(3.0, 4.0) == pytest.approx(5 * band.relative)
    assert band.of_difference(3.0, 4.0, 4, 4) == pytest.approx(2.5 * band.relative)
    assert band.of_difference(3.0, 4.0, 9, 1) == pytest.approx(17**0.5 * band.relative)
    assert band.of_difference(3.0, 4.0, 1, 4) == pytest.approx(13**0.5 * band.relative)


def test_without_repeats_there_is_no_band() -> None:
    assert build_band([[1.0], [2.0]]) is None and build_band([]) is None


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_a_difference_by_chance_is_inside_the_band_95_times_in_100(repeats: int) -> None:
    draw = random.Random(repeats)
    inside = 0
    for _ in range(2000):
        groups = [[draw.gauss(100.0, 2.0) for _ in range(repeats)] for _ in range(2)]
        band = build_band(groups)
        assert band
        a, b = (sum(group) / repeats for group in groups)
        inside += abs(a - b) <= band.of_difference(a, b, repeats, repeats)
    assert 0.935 < inside / 2000 < 0.965


def build_report(root: Path, *runs: tuple[str, str, float, int], **changes: Any) -> dict[str, Any]:
    for name, strategy, samples_per_s, seed in runs:
        build_run_dir(
            root,
            name,
            strategy,
            device="cuda",
            hosts=["n"],
            samples_per_s=samples_per_s,
            seed=seed,
            **changes,
        )
    return compare(load_runs(root))


def test_repeats_are_found_by_their_settings_whatever_their_seed(tmp_path: Path) -> None:
    build_run_dir(tmp_path, "larger", "ddp", device="cuda", hosts=["n"], micro_batch_size=16)
    report = build_report(tmp_path, ("a", "ddp", 1000.0, 0), ("b", "ddp", 1010.0, 1), ("c", "fsdp", 900.0, 0))
    noise = report["noise"]
    assert noise["variants"] == [["a", "b"], ["c"], ["larger"]]
    assert (noise["method"], noise["repeats"], noise["degrees"]) == (METHOD, 2, 1)
    row = {row["run"]: row for row in report["runs"]}
    assert row["c"]["noise_ms"] == pytest.approx(noise["relative_pct"] / 100 * row["c"]["step_time_ms_p50"])
    assert f"{noise['relative_pct']:.2g}" == "8.9"  # t = 12.7 for one pair


def test_one_repeat_has_no_band(tmp_path: Path) -> None:
    noise = build_report(tmp_path, ("a", "ddp", 1000.0, 0), ("c", "fsdp", 900.0, 0))["noise"]
    assert noise["method"] == NO_BAND and noise["relative_pct"] is None
    assert set(noise["noise_ms"].values()) == {None}


def test_the_noise_of_other_repeats_counts_for_a_single_run(tmp_path: Path) -> None:
    """zero2 was run once; ddp twice, 5 % apart by chance."""
    runs = [("a", "ddp", 1000.0, 0), ("b", "ddp", 1050.0, 1), ("c", "zero2", 940.0, 0)]
    report = build_report(tmp_path, *runs)
    group = report["group_winners"][0]
    assert group["runs"] == ["a", "c"] and group["winners"]["samples_per_s"] is None
    assert "within the noise of repeats" in group["winner_reasons"]["samples_per_s"]
    assert report["attribution"]["pairs"][0]["no_cause"].startswith("repeats differ by up to")


def test_an_unknown_fact_makes_nobody_a_repeat(tmp_path: Path) -> None:
    report = build_report(tmp_path, ("a", "ddp", 1000.0, 0), ("b", "ddp", 1010.0, 1), data_sha256=None)
    assert report["noise"]["variants"] == [["a"], ["b"]]
