"""Traces that are not what they seem: what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.analysis.measuring.measure import measure_traces
from stratlab.analysis.measuring.rank import RankAnalysis
from stratlab.analysis.reporting.totals import build_mean_row
from tests.stratlab.real_traces import unpack
from tests.stratlab.simulated.small import TraceWriter, build_cpu_trace, build_gpu_trace


def analyse(trace: TraceWriter, folder: Path) -> RankAnalysis:
    (rank,) = measure_traces({0: trace.write(folder / "rank0_trace.json")}).ranks
    return rank


def test_launches_without_kernels_of_a_real_trace(tmp_path: Path) -> None:
    (rank,) = measure_traces(unpack("launches_without_kernels", tmp_path)).ranks
    assert build_mean_row([rank], {}, 1)["unrecorded_launches"] == 77  # by hand
    (said,) = (finding.reason for finding in rank.findings if "not recorded" in finding.reason)
    assert "77 launches" in said and "ProfilerActivity" in said and "cuda_profiler_range" in said


@pytest.mark.parametrize(
    ("category", "call"),
    [
        ("mtia_runtime", "runFunction - job_prep_and_submit_for_execution"),
        ("xpu_runtime", "urEnqueueKernelLaunch"),
        ("privateuse1_runtime", "aclopLaunch"),
        ("sycl_driver", "zeCommandListAppendLaunchKernel"),
    ],
)
def test_launches_of_any_device_count(tmp_path: Path, category: str, call: str) -> None:
    trace = build_cpu_trace(0)
    assert analyse(trace, tmp_path).unrecorded == 0
    trace.add(category, call, 1001, 1002, correlation=5)
    assert analyse(trace, tmp_path).unrecorded == 1


def test_overlapping_steps_of_one_number_are_refused(tmp_path: Path) -> None:
    trace = build_gpu_trace(0)
    assert measure_traces({0: trace.write(tmp_path / "rank0_trace.json")}).ranks
    trace.add("user_annotation", "## Training Step 11 ##", 6100, 7100, 9, 9)
    found = measure_traces({0: trace.write(tmp_path / "rank0_trace.json")})
    assert not found.ranks and "step 11 several times at once" in found.findings[0].reason


def test_doubled_events_are_told(tmp_path: Path) -> None:
    trace = build_gpu_trace(0)
    whole = analyse(trace, tmp_path)
    trace.events += [event for event in trace.events if event["cat"] == "kernel"][:2]
    found = analyse(trace, tmp_path)
    assert [row.step_ms for row in found.rows] == [row.step_ms for row in whole.rows]
    assert [finding.reason.split()[0] for finding in found.findings if "twice" in finding.reason] == ["2"]
