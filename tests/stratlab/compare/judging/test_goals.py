from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.judging.pareto import build_pareto
from stratlab.compare.judging.winners import ON_CPU
from stratlab.compare.reading.comparison_folder import load_runs
from tests.stratlab.example_run import build_run_dir

RUNS = {"ddp": (1000.0, 8.0), "zero2": (950.0, 5.0), "fsdp": (800.0, 3.0)}


def build_report(
    root: Path, limit: float | None = None, device: str = "cuda", **changes: Any
) -> dict[str, Any]:
    for strategy, (speed, peak) in RUNS.items():
        memory = {"peak_memory_gib": peak} if device == "cuda" else {}
        build_run_dir(
            root, strategy, strategy, device=device, hosts=["n"], samples_per_s=speed, **memory, **changes
        )
    return compare(load_runs(root), memory_limit_gib=limit)


def read_goals(report: dict[str, Any]) -> dict[str, str | None]:
    (group,) = report["goals"]["groups"]
    return {entry["goal"]: entry["run"] for entry in group["goals"]}


@pytest.mark.parametrize(
    ("limit", "winner"), [(10.0, "ddp"), (8.0, "ddp"), (7.9, "zero2"), (4.0, "fsdp"), (2.0, None)]
)
def test_the_fastest_that_fits(tmp_path: Path, limit: float, winner: str | None) -> None:
    report = build_report(tmp_path, limit)
    name = f"fastest within {limit:g} GiB per device"
    assert read_goals(report) == {"fastest": "ddp", "least memory": "fsdp", name: winner}
    fits = {entry["run"]: entry["fits"] for entry in report["goals"]["fits"]}
    assert fits == {run: peak <= limit for run, (_, peak) in RUNS.items()}


def test_the_reason_names_who_does_not_fit(tmp_path: Path) -> None:
    goals = build_report(tmp_path, 6.0)["goals"]["groups"][0]["goals"]
    assert goals[2]["reason"].endswith("; too large: ddp")
    assert goals[2]["reason"].startswith("950.0 samples per s against 800.0 of fsdp")
    assert goals[1]["reason"].endswith("peak of device memory per rank")


def test_without_a_limit_there_is_no_such_goal(tmp_path: Path) -> None:
    report = build_report(tmp_path)
    assert set(read_goals(report)) == {"fastest", "least memory"} and report["goals"]["fits"] == []


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(tmp_path: Path, limit: float) -> None:
    with pytest.raises(ValueError, match="--memory-limit-gib .*: expected a number above 0"):
        build_report(tmp_path, limit)


def test_on_a_cpu_only_counted_memory_names_somebody(tmp_path: Path) -> None:
    report = build_report(tmp_path, 1.0, device="cpu")
    (group,) = report["goals"]["groups"]
    assert [entry["run"] for entry in group["goals"]] == [None, "fsdp", None]
    assert group["goals"][0]["reason"] == group["goals"][2]["reason"] == ON_CPU
    assert {entry["fits"] for entry in report["goals"]["fits"]} == {None}, "the state alone does not tell"
    assert report["pareto"][0]["memory"] == "state_memory_gib"
    assert report["pareto"][0]["front"] == [] and report["pareto"][0]["note"] == ON_CPU


def test_what_the_state_alone_exceeds_does_not_fit_without_any_peak(tmp_path: Path) -> None:
    report = build_report(tmp_path, 0.002, device="cpu")
    assert {e["run"]: e["fits"] for e in report["goals"]["fits"]} == {
        "ddp": False,
        "fsdp": None,
        "zero2": None,
    }


def test_among_runs_that_are_not_comparable_nobody_is_named(tmp_path: Path) -> None:
    for seed, strategy in enumerate(("ddp", "fsdp")):
        build_run_dir(tmp_path, strategy, strategy, device="cuda", seed=seed)
    report = compare(load_runs(tmp_path), memory_limit_gib=1.0)
    assert report["goals"]["groups"] == [] and report["pareto"] == []


def test_the_front_is_who_is_not_beaten_in_both(tmp_path: Path) -> None:
    assert build_report(tmp_path)["pareto"][0]["front"] == ["fsdp", "zero2", "ddp"]


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ({"a": (1.0, 10.0), "b": (2.0, 10.0)}, ["a"]),  # as fast with more memory
        ({"a": (1.0, 10.0), "b": (1.0, 9.0)}, ["a"]),
        ({"a": (1.0, 10.0), "b": (1.0, 10.0)}, ["a", "b"]),  # equals do not beat each other
        ({"a": (3.0, 10.0), "b": (1.0, 5.0), "c": (2.0, 4.0), "d": (2.5, 7.0)}, ["b", "d", "a"]),
    ],
)
def test_fronts_by_hand(points: dict[str, tuple[float, float]], front: list[str]) -> None:
    rows = [
        {"run": run, "peak_memory_gib": memory, "samples_per_s": speed, "device_type": "cuda"}
        for run, (memory, speed) in points.items()
    ]
    (entry,) = build_pareto(rows, [list(points)])
    assert entry["front"] == front and [p["run"] for p in entry["points"] if p["front"]] == front
