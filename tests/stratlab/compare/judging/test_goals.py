from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.compare.judging.pareto import build_pareto
from stratlab.compare.judging.winners import ON_CPU
from stratlab.user_error import UserError
from tests.codes import find_codes
from tests.stratlab.compare.building import Report, judge

RUNS = {"ddp": (1000.0, 8.0), "zero2": (950.0, 5.0), "fsdp": (800.0, 3.0)}


def judge_three(root: Path, limit: float | None = None, device: str = "cuda") -> Report:
    memory = device == "cuda"
    runs = {
        name: {"samples_per_s": speed, **({"peak_memory_gib": peak} if memory else {})}
        for name, (speed, peak) in RUNS.items()
    }
    return judge(root, runs, {"memory_limit_gib": limit}, device=device)


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
    assert judge_three(tmp_path)["goals"]["fits"] == [], "without a limit there is no such goal"


@pytest.mark.parametrize("limit", [0.0, float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(tmp_path: Path, limit: float) -> None:
    with pytest.raises(UserError) as refused:
        judge_three(tmp_path, limit)
    assert find_codes(refused.value) == ["SL-memory-limit"]


def test_on_a_cpu_only_counted_memory_names_somebody(tmp_path: Path) -> None:
    report = judge_three(tmp_path, 0.002, device="cpu")
    (group,) = report["goals"]["groups"]
    assert [entry["run"] for entry in group["goals"]] == [None, "fsdp", None]
    assert group["goals"][0]["reason"] == group["goals"][2]["reason"] == ON_CPU
    fits = {entry["run"]: entry["fits"] for entry in report["goals"]["fits"]}
    assert fits == {"ddp": False, "fsdp": None, "zero2": None}, "the state alone can only exceed it"
    (entry,) = report["pareto"]
    assert (entry["memory"], entry["front"], entry["note"]) == ("state_memory_gib", [], ON_CPU)


def test_among_runs_that_are_not_comparable_nobody_is_named(tmp_path: Path) -> None:
    report = judge(tmp_path, {"ddp": {}, "fsdp": {"seed": 1}}, {"memory_limit_gib": 1.0})
    assert report["goals"]["groups"] == [] and report["pareto"] == []


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
