"""Who is best in what, beyond the noise of repeats, for which goal, and on which front."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.winners import LEAST_LEAD_PCT, METHOD, NO_BAND, ON_CPU, build_band, build_pareto
from tests.stratlab.compare.building import Report, build_bare_row, judge, rows_of

RUNS = {"ddp": (1000.0, 8.0), "zero2": (950.0, 5.0), "fsdp": (800.0, 3.0)}


def race(root: Path, speeds: dict[str, float], **changes: Any) -> Report:
    return judge(root, {name: {"samples_per_s": speed} for name, speed in speeds.items()}, **changes)


def judge_three(root: Path, limit: float, device: str = "cuda") -> Report:
    """RUNS, with a limit of the device's memory; on a CPU there is no peak."""
    peaks = {name: {"peak_memory_gib": peak} if device == "cuda" else {} for name, (_, peak) in RUNS.items()}
    runs = {name: {"samples_per_s": speed, **peaks[name]} for name, (speed, _) in RUNS.items()}
    return judge(root, runs, {"memory_limit_gib": limit}, device=device)


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
        a, b = (sum(group) / repeats for group in groups)
        band = build_band(groups)
        inside += abs(a - b) <= (band.of_difference(a, b, repeats, repeats) if band else 0)
    assert 0.935 < inside / 2000 < 0.965


def test_repeats_are_found_by_their_settings_whatever_their_seed(tmp_path: Path) -> None:
    alone = race(tmp_path, {"ddp-a": 1000.0, "fsdp": 900.0})["noise"]
    assert (alone["method"], set(alone["noise_ms"].values())) == (NO_BAND, {None})
    report = judge(
        tmp_path, {"ddp-b": {"samples_per_s": 1050.0, "seed": 1}, "ddp-c": {"micro_batch_size": 16}}
    )
    noise, row = report["noise"], rows_of(report)["fsdp"]
    assert noise["variants"] == [["ddp-a", "ddp-b"], ["ddp-c"], ["fsdp"]]
    assert (noise["method"], noise["repeats"], noise["degrees"]) == (METHOD, 2, 1)
    assert noise["relative_pct"] == pytest.approx(12.706 * 100 * (2 * 0.02439**2) ** 0.5, rel=1e-3)
    assert row["noise_ms"] == pytest.approx(noise["relative_pct"] / 100 * row["step_time_ms_p50"])
    group = report["group_winners"][0]
    assert group["runs"] == ["ddp-a", "ddp-b", "fsdp"] and group["winners"]["samples_per_s"] is None, (
        "a single run's, too"
    )
    unknown = judge(tmp_path / "unknown", ["ddp-a", "ddp-b"], data_sha256=None)["noise"]
    assert unknown["variants"] == [["ddp-a"], ["ddp-b"]]


@pytest.mark.parametrize(
    ("speeds", "winner"),
    [
        (
            {"ddp": 1000.0, "fsdp": 1000.0 / (1 - 0.9 * LEAST_LEAD_PCT / 100)},
            None,
        ),  # one repeat must lead clearly
        ({"ddp": 1000.0, "fsdp": 1000.0 / (1 - 1.1 * LEAST_LEAD_PCT / 100)}, "fsdp"),
        ({"ddp": 1000.0, "fsdp": 1000.0 - 10 * LEAST_LEAD_PCT}, "ddp"),
        # about 0.07 % of spread, 2 degrees of freedom: 3 samples per s between medians are chance
        ({"ddp-1": 1000.0, "ddp-2": 1001.0, "fsdp-1": 968.0, "fsdp-2": 969.0}, "ddp"),
        ({"ddp-1": 1000.0, "ddp-2": 1001.0, "fsdp-1": 998.0, "fsdp-2": 999.0}, None),
        ({"ddp-1": 1000.0, "ddp-2": 1200.0, "fsdp-1": 900.0, "fsdp-2": 1050.0}, None),  # they overlap
        ({"ddp-1": 1.0, "ddp-2": 2.0}, None),  # repeats of one strategy
    ],
)
def test_who_leads_by_enough(tmp_path: Path, speeds: dict[str, float], winner: str | None) -> None:
    assert race(tmp_path, speeds)["winners"]["samples_per_s"] == winner


def test_repeats_that_overlap_name_nobody(tmp_path: Path) -> None:
    """Though the best of them is ahead, and by more than all noise."""
    report = race(tmp_path, {"ddp-1": 1000.0, "ddp-2": 1200.0, "fsdp-1": 999.0, "fsdp-2": 1001.0})
    assert report["winners"]["samples_per_s"] is None
    assert {"ddp", "fsdp"} <= set(report["winner_reasons"]["samples_per_s"].split())


def test_a_winner_is_named_only_over_numbers_that_all_runs_have(tmp_path: Path) -> None:
    report = judge(tmp_path, {"ddp": {}, "fsdp": {"analysis": False}, "zero2": {"status": "failed"}})
    assert report["winners"]["comm_exposed_pct"] is None
    assert "fsdp" in report["winner_reasons"]["comm_exposed_pct"]
    assert report["winners"]["peak_memory_gib"] == "fsdp" and "zero2" not in report["winners"].values()
    same = {"parameter_memory_gib": 1.0, "gradient_memory_gib": 1.0, "optimizer_memory_gib": 2.0}
    tie = judge(tmp_path / "tie", ["ddp", "fsdp"], **same)
    assert tie["winners"]["state_memory_gib"] is None and "4.0" in tie["winner_reasons"]["state_memory_gib"]


@pytest.mark.parametrize(("limit", "winner"), [(8.0, "ddp"), (7.9, "zero2"), (2.0, None)])
def test_the_fastest_that_fits(tmp_path: Path, limit: float, winner: str | None) -> None:
    report = judge_three(tmp_path, limit)
    (group,) = report["goals"]["groups"]
    found = [(entry["goal"], entry["run"]) for entry in group["goals"]]
    assert found[:2] == [("fastest", "ddp"), ("least memory", "fsdp")]
    assert f"{limit:g} GiB" in found[2][0] and found[2][1] == winner
    fits = {entry["run"]: entry["fits"] for entry in report["goals"]["fits"]}
    assert fits == {run: peak <= limit for run, (_, peak) in RUNS.items()}


def test_the_reason_names_who_does_not_fit(tmp_path: Path) -> None:
    report = judge_three(tmp_path, 6.0)
    within = report["goals"]["groups"][0]["goals"][2]
    assert within["reason"].endswith(": ddp") and {"950.0", "800.0"} <= set(within["reason"].split())
    (entry,) = report["pareto"]
    assert (entry["memory"], entry["front"]) == ("peak_memory_gib", ["fsdp", "zero2", "ddp"])


def test_on_a_cpu_only_counted_memory_names_somebody(tmp_path: Path) -> None:
    report = judge_three(tmp_path, 0.002, device="cpu")
    assert report["fairness"]["verdict"] == "comparable" and ON_CPU in report["remarks"]
    assert {key for key, run in report["winners"].items() if run} == {"state_memory_gib"}
    (group,) = report["goals"]["groups"]
    assert [entry["run"] for entry in group["goals"]] == [None, "fsdp", None]
    assert group["goals"][0]["reason"] == group["goals"][2]["reason"] == ON_CPU
    fits = {entry["run"]: entry["fits"] for entry in report["goals"]["fits"]}
    assert fits == {"ddp": False, "fsdp": None, "zero2": None}, "the state alone can only exceed it"
    (entry,) = report["pareto"]
    assert (entry["memory"], entry["front"], entry["note"]) == ("state_memory_gib", [], ON_CPU)


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ({"a": (1.0, 10.0), "b": (2.0, 10.0)}, ["a"]),  # as fast with more memory
        ({"a": (1.0, 10.0), "b": (1.0, 10.0)}, ["a", "b"]),  # equals do not beat each other
        ({"a": (3.0, 10.0), "b": (1.0, 5.0), "c": (2.0, 4.0), "d": (2.5, 7.0)}, ["b", "d", "a"]),
    ],
)
def test_fronts_by_hand(points: dict[str, tuple[float, float]], front: list[str]) -> None:
    rows = [
        build_bare_row(run, peak_memory_gib=memory, samples_per_s=speed, device_type="cuda")
        for run, (memory, speed) in points.items()
    ]
    (entry,) = build_pareto(rows, [list(points)])
    assert entry["front"] == front
