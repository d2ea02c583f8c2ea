from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.judging.winners import LEAST_LEAD_PCT, METRICS, ON_CPU
from stratlab.compare.reading.comparison_folder import load_runs
from tests.stratlab.example_run import build_run_dir

GPU_METRICS = [metric.key for metric in METRICS if metric.on_cpu]


def _compare(root: Path, *runs: tuple[str, str, dict[str, Any]], device: str = "cuda") -> dict[str, Any]:
    for name, strategy, changes in runs:
        build_run_dir(root, name, strategy, **{"device": device, "hosts": ["n"], **changes})
    return compare(load_runs(root))


def test_on_gpus_the_best_is_named_with_both_numbers(tmp_path: Path) -> None:
    report = _compare(
        tmp_path,
        ("ddp", "ddp", {"samples_per_s": 1000.0, "step_time_ms_p50": 60.0}),
        ("fsdp", "fsdp", {"samples_per_s": 900.0, "step_time_ms_p50": 70.0}),
    )
    assert report["winners"] == {
        "samples_per_s": "ddp",
        "step_time_ms_p50": "ddp",
        "comm_exposed_pct": "ddp",
        "peak_memory_gib": "fsdp",
        "state_memory_gib": "fsdp",
    }
    reason = report["winner_reasons"]["samples_per_s"]
    assert reason == "1,000 samples per s against 900.0 of fsdp; one repeat, so no confidence interval"
    assert ON_CPU not in report["remarks"]


def test_on_a_cpu_nobody_is_fast(tmp_path: Path) -> None:
    report = _compare(
        tmp_path,
        ("ddp", "ddp", {"samples_per_s": 1000.0}),
        ("fsdp", "fsdp", {"samples_per_s": 100.0}),
        device="cpu",
    )
    assert report["fairness"]["verdict"] == "comparable"
    assert {key: report["winners"][key] for key in GPU_METRICS} == dict.fromkeys(GPU_METRICS)
    assert report["winner_reasons"]["samples_per_s"] == ON_CPU
    assert report["winners"]["state_memory_gib"] == "fsdp"  # counted bytes are the same on any hardware
    assert "exact on any hardware" in report["winner_reasons"]["state_memory_gib"]
    assert ON_CPU in report["remarks"]


def test_over_a_difference_that_matters_nobody_is_named(tmp_path: Path) -> None:
    report = _compare(tmp_path, ("ddp", "ddp", {}), ("fsdp", "fsdp", {"seed": 1}))
    assert set(report["winners"].values()) == {None}
    assert set(report["winner_reasons"].values()) == {"the runs differ in seed"}


def test_within_a_group_of_comparable_runs_the_best_is_named(tmp_path: Path) -> None:
    report = _compare(
        tmp_path, ("ddp", "ddp", {}), ("fsdp", "fsdp", {}), ("single", "single", {}), ("zero2", "zero2", {})
    )
    assert set(report["winners"].values()) == {None}
    assert [group["runs"] for group in report["group_winners"]] == [["ddp", "fsdp", "zero2"]]
    assert report["group_winners"][0]["winners"]["samples_per_s"] == "ddp"
    assert report["group_winners"][0]["winners"]["state_memory_gib"] == "fsdp"


def test_without_a_difference_there_is_one_verdict_only(tmp_path: Path) -> None:
    assert _compare(tmp_path, ("ddp", "ddp", {}), ("fsdp", "fsdp", {}))["group_winners"] == []


@pytest.mark.parametrize(
    ("lead_pct", "winner"), [(LEAST_LEAD_PCT * 0.9, None), (LEAST_LEAD_PCT * 1.1, "fsdp")]
)
def test_one_repeat_must_lead_clearly(tmp_path: Path, lead_pct: float, winner: str | None) -> None:
    report = _compare(
        tmp_path,
        ("ddp", "ddp", {"samples_per_s": 1000.0}),
        ("fsdp", "fsdp", {"samples_per_s": 1000.0 / (1 - lead_pct / 100)}),
    )
    assert report["winners"]["samples_per_s"] == winner
    assert ("too close for one repeat" in report["winner_reasons"]["samples_per_s"]) is (winner is None)


@pytest.mark.parametrize(("others", "winner"), [((968.0, 969.0), "ddp-2"), ((998.0, 999.0), None)])
def test_repeats_must_lie_further_apart_than_their_noise(
    tmp_path: Path, others: tuple[float, float], winner: str | None
) -> None:
    """Two repeats each, about 0.07 % of spread, 2 degrees of freedom: 3 samples per s between medians are chance."""
    speeds = {"ddp-1": 1000.0, "ddp-2": 1001.0, "fsdp-1": others[0], "fsdp-2": others[1]}
    report = _compare(tmp_path, *((n, n.partition("-")[0], {"samples_per_s": v}) for n, v in speeds.items()))
    assert report["winners"]["samples_per_s"] == winner
    reason = report["winner_reasons"]["samples_per_s"]
    assert ("every one of 2 repeats is ahead, by more than the noise of 3.0" in reason) is (
        winner is not None
    )
    assert ("within the noise of repeats, 3.0" in reason) is (winner is None)
    assert report["origin"]["repeats"] == 2
    assert not any("confidence" in remark for remark in report["remarks"])


def test_repeats_that_overlap_name_nobody(tmp_path: Path) -> None:
    runs = [
        ("ddp-1", "ddp", 1000.0),
        ("ddp-2", "ddp", 1200.0),
        ("fsdp-1", "fsdp", 900.0),
        ("fsdp-2", "fsdp", 1050.0),
    ]
    report = _compare(tmp_path, *((name, s, {"samples_per_s": speed}) for name, s, speed in runs))
    assert report["winners"]["samples_per_s"] is None
    assert report["winner_reasons"]["samples_per_s"] == "the repeats of ddp-2 and fsdp-2 overlap"


def test_equal_bytes_are_a_tie(tmp_path: Path) -> None:
    same = {"parameter_memory_gib": 1.0, "gradient_memory_gib": 1.0, "optimizer_memory_gib": 2.0}
    report = _compare(tmp_path, ("ddp", "ddp", same), ("fsdp", "fsdp", same))
    assert report["winners"]["state_memory_gib"] is None
    assert report["winner_reasons"]["state_memory_gib"] == "ddp and fsdp are equal: 4.0 GiB"


def test_a_number_that_one_run_lacks_ranks_nobody(tmp_path: Path) -> None:
    report = _compare(tmp_path, ("ddp", "ddp", {}), ("fsdp", "fsdp", {"analysis": False}))
    assert report["winners"]["comm_exposed_pct"] is None
    assert report["winner_reasons"]["comm_exposed_pct"] == "not recorded by fsdp"
    assert report["winners"]["peak_memory_gib"] == "fsdp"


def test_repeats_of_one_strategy_are_no_contest(tmp_path: Path) -> None:
    report = _compare(tmp_path, ("a", "ddp", {"samples_per_s": 1.0}), ("b", "ddp", {"samples_per_s": 2.0}))
    assert set(report["winner_reasons"].values()) == {"all runs are repeats of one strategy"}


def test_a_failed_run_never_wins(tmp_path: Path) -> None:
    report = _compare(
        tmp_path, ("ddp", "ddp", {}), ("fsdp", "fsdp", {}), ("zero2", "zero2", {"status": "failed"})
    )
    assert "zero2" not in report["winners"].values() and report["winners"]["state_memory_gib"] == "fsdp"
