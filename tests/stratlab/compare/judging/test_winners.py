from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.compare.judging.winners import LEAST_LEAD_PCT, METRICS, ON_CPU
from tests.stratlab.compare.building import Report, judge

GPU_METRICS = [metric.key for metric in METRICS if metric.on_cpu]


def race(root: Path, speeds: dict[str, float], **changes: object) -> Report:
    return judge(root, {name: {"samples_per_s": speed} for name, speed in speeds.items()}, **changes)


def test_on_gpus_the_best_is_named_with_both_numbers(tmp_path: Path) -> None:
    report = race(tmp_path, {"ddp": 1000.0, "fsdp": 900.0})
    assert report["winners"] == {
        **dict.fromkeys(("samples_per_s", "step_time_ms_p50", "comm_exposed_pct"), "ddp"),
        **dict.fromkeys(("peak_memory_gib", "state_memory_gib"), "fsdp"),
    }
    assert {"1,000", "900.0", "fsdp;"} <= set(report["winner_reasons"]["samples_per_s"].split())
    assert ON_CPU not in report["remarks"] and report["group_winners"] == []


def test_on_a_cpu_nobody_is_fast(tmp_path: Path) -> None:
    report = race(tmp_path, {"ddp": 1000.0, "fsdp": 100.0}, device="cpu")
    assert report["fairness"]["verdict"] == "comparable" and ON_CPU in report["remarks"]
    assert {key: report["winners"][key] for key in GPU_METRICS} == dict.fromkeys(GPU_METRICS)
    assert report["winner_reasons"]["samples_per_s"] == ON_CPU
    assert report["winners"]["state_memory_gib"] == "fsdp", "counted bytes are the same on any hardware"


def test_over_a_difference_that_matters_the_best_is_named_within_a_group_alone(tmp_path: Path) -> None:
    report = judge(tmp_path, ["ddp", "fsdp", "single", "zero2"])
    assert set(report["winners"].values()) == {None}
    assert set(report["winner_reasons"].values()) == {report["fairness"]["reason"]}
    (group,) = report["group_winners"]
    assert group["runs"] == ["ddp", "fsdp", "zero2"]
    assert (group["winners"]["samples_per_s"], group["winners"]["state_memory_gib"]) == ("ddp", "fsdp")


@pytest.mark.parametrize(
    ("speeds", "winner"),
    [
        (
            {"ddp": 1000.0, "fsdp": 1000.0 / (1 - 0.9 * LEAST_LEAD_PCT / 100)},
            None,
        ),  # one repeat must lead clearly
        ({"ddp": 1000.0, "fsdp": 1000.0 / (1 - 1.1 * LEAST_LEAD_PCT / 100)}, "fsdp"),
        # about 0.07 % of spread, 2 degrees of freedom: 3 samples per s between medians are chance
        ({"ddp-1": 1000.0, "ddp-2": 1001.0, "fsdp-1": 968.0, "fsdp-2": 969.0}, "ddp-2"),
        ({"ddp-1": 1000.0, "ddp-2": 1001.0, "fsdp-1": 998.0, "fsdp-2": 999.0}, None),
        ({"ddp-1": 1.0, "ddp-2": 2.0}, None),  # repeats of one strategy
    ],
)
def test_who_leads_by_enough(tmp_path: Path, speeds: dict[str, float], winner: str | None) -> None:
    report = race(tmp_path, speeds)
    assert report["winners"]["samples_per_s"] == winner
    if len(speeds) == 4:
        assert "3.0" in report["winner_reasons"]["samples_per_s"] and report["origin"]["repeats"] == 2


def test_repeats_that_overlap_name_nobody(tmp_path: Path) -> None:
    report = race(tmp_path, {"ddp-1": 1000.0, "ddp-2": 1200.0, "fsdp-1": 900.0, "fsdp-2": 1050.0})
    assert report["winners"]["samples_per_s"] is None
    assert {"ddp-2", "fsdp-2"} <= set(report["winner_reasons"]["samples_per_s"].split())


def test_equal_bytes_are_a_tie(tmp_path: Path) -> None:
    same = {"parameter_memory_gib": 1.0, "gradient_memory_gib": 1.0, "optimizer_memory_gib": 2.0}
    report = judge(tmp_path, ["ddp", "fsdp"], **same)
    assert (
        report["winners"]["state_memory_gib"] is None
        and "4.0" in report["winner_reasons"]["state_memory_gib"]
    )


def test_a_number_that_one_run_lacks_ranks_nobody_and_a_failed_run_never_wins(tmp_path: Path) -> None:
    report = judge(tmp_path, {"ddp": {}, "fsdp": {"analysis": False}, "zero2": {"status": "failed"}})
    assert report["winners"]["comm_exposed_pct"] is None
    assert "fsdp" in report["winner_reasons"]["comm_exposed_pct"]
    assert report["winners"]["peak_memory_gib"] == "fsdp" and "zero2" not in report["winners"].values()
