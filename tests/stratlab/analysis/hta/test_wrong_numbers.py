"""Where Holistic Trace Analysis (0.6.1) is wrong: its number, the true one, and ours. One row each in docs/hta.md."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis.dividing.lanes import build_lanes
from stratlab.analysis.measuring.idle import build_idle
from stratlab.analysis.measuring.measure import measure_traces
from stratlab.analysis.measuring.rank import RankAnalysis
from stratlab.traces.trace import load_trace
from tests.stratlab.analysis.hta.loading import build_idle_of_hta, build_kernels_of_hta, load_hta
from tests.stratlab.simulated.small import COMM_STREAM, COMPUTE_STREAM, GPU, TraceWriter
from tests.stratlab.simulated.team import Scene, simulate

START = 1_000.0  # us

pytestmark = pytest.mark.filterwarnings("ignore")  # HTA on pandas 2


class Written:
    """One rank with one step of 1000 us, and both readings of it."""

    def __init__(self, folder: Path) -> None:
        self.trace = TraceWriter(0)
        self.trace.label("## Training Step 1 ##", START, START + 1000)
        self.trace.label("ProfilerStep#1", START, START + 1000)
        self.path = folder / "rank0_trace.json"

    def kernel(
        self, name: str, start: float, end: float, stream: int = COMPUTE_STREAM, lead: float = 5
    ) -> None:
        """`lead`: launched so much earlier, us."""
        self.trace.kernel(name, START + start - lead, START + start, START + end, stream)

    def read(self, **options: Any) -> tuple[Any, RankAnalysis]:
        files = {0: self.trace.write(self.path)}
        (ours,) = measure_traces(files, {"dp_replicate": 2}).ranks
        return load_hta(files, **options), ours


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def find_temporal(hta: Any) -> dict[str, float]:
    (row,) = hta.get_temporal_breakdown(visualize=False).to_dict("records")
    return {str(name): float(value) for name, value in row.items()}


def test_whole_microseconds(tmp_path: Path) -> None:
    """1: by default it rounds starts up and ends down, so every kernel loses up to 2 us. We keep nanoseconds, and run
    HTA with HTA_DISABLE_NS_ROUNDING=1."""
    scene = Scene(ranks=1, kernel_ns=4_000, optimizer_kernels=30, launch_ns=500, origin_ns=1_000_000_000)
    truth = simulate(tmp_path, scene)
    compute_us = sum(step.compute for step in truth.steps.values()) / 1e3
    wrong = find_temporal(load_hta(truth.files, rounds_times=True))["compute_time(us)"]
    assert wrong < 0.9 * compute_us
    assert find_temporal(load_hta(truth.files))["compute_time(us)"] == pytest.approx(compute_us, rel=1e-6)
    (ours,) = measure_traces(truth.files).ranks
    assert sum(row.compute_ms for row in ours.rows) * 1e3 == pytest.approx(compute_us, rel=1e-12)


def test_mean_that_is_a_sum(written: Written) -> None:
    """2: with more names than `num_kernels` (10), mean, max and min of every kernel are its sum. We ask for 100,000."""
    for i in range(12):
        for at in (50 * i, 50 * i + 20):
            written.kernel(f"gemm{i:02}", at, at + 3)
    hta, ours = written.read()
    rows = hta.get_gpu_kernel_breakdown(visualize=False)[1].set_index("name")
    assert rows.loc["gemm03", "mean (us)"] == rows.loc["gemm03", "sum (us)"] == pytest.approx(6)
    assert build_kernels_of_hta(hta)[0, "gemm03"]["mean (us)"] == pytest.approx(3)
    assert {(row.name, row.mean_us, row.sum_ms) for row in ours.kernels} == {
        (f"gemm{i:02}", 3.0, 0.006) for i in range(12)
    }


def test_last_step_that_is_dropped(tmp_path: Path) -> None:
    """3: by default it leaves out the last profiled step, or a part of it where Kineto has projected the steps onto the
    GPU. We ask for all."""
    for gpu_labels in (False, True):
        scene = Scene(ranks=1, steps=3, gpu_labels=gpu_labels, origin_ns=1_000_000_000)
        truth = simulate(tmp_path / str(gpu_labels), scene)
        first, second, third = (step.compute / 1e3 for step in truth.steps.values())
        wrong = find_temporal(load_hta(truth.files, include_last_profiler_step=False))["compute_time(us)"]
        if gpu_labels:
            assert first + second + 100 < wrong < first + second + third - 100
        else:
            assert wrong == pytest.approx(first + second, rel=1e-6)
        asked = find_temporal(load_hta(truth.files))["compute_time(us)"]
        assert asked == pytest.approx(first + second + third, rel=1e-6)
        (ours,) = measure_traces(truth.files).ranks
        assert [round(row.compute_ms * 1e6) for row in ours.rows] == [s.compute for s in truth.steps.values()]


def test_operator_with_a_stream(written: Written) -> None:
    """4: Triton's operators carry the number of a stream, and count as GPU work. We go by the category."""
    written.kernel("triton_poi_fused_add_0", 200, 300)
    written.kernel("gemm", 300, 400)
    written.trace.add("cpu_op", "triton_poi_fused_add_0", START + 100, START + 190, stream=0, grid="grid(1,)")
    hta, ours = written.read()
    assert find_temporal(hta)["compute_time(us)"] == pytest.approx(290)
    assert ours.rows[0].compute_ms == 0.2
    assert [(row.name, row.count) for row in ours.kernels] == [("gemm", 1), ("triton_poi_fused_add_0", 1)]


OF_LIBRARIES = {
    "void deep_ep::intranode::dispatch<8, 768>(int4*, float*)": True,
    "void dpsk::ep::internode::cached_notify<false>(int, int, int, int)": True,
    "void nvshmemi_transfer_kernel<long>(long*)": True,
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(RankData*)": True,
    "void one_shot_all_reduce_kernel<c10::BFloat16, 16>(long)": True,
    "void cdpsk::ep::CUB_200700_900_NS::DeviceScanKernel<Policy>(int*)": False,
    "void deep_ep::internode::get_dispatch_layout<256, 32, 8>(long const*)": False,
}


@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_communication_that_is_not_nccls(written: Written, name: str) -> None:
    """5: communication is only what is named as NCCL's is; other libraries' kernels count as compute. We know the
    common ones, and that DeepEP's own scans and layouts send nothing."""
    written.kernel("gemm", 100, 300)
    written.kernel(name, 300, 400, COMM_STREAM)
    hta, ours = written.read()
    assert find_temporal(hta)["compute_time(us)"] == pytest.approx(300)
    talks = OF_LIBRARIES[name]
    assert (ours.rows[0].compute_ms, ours.rows[0].comm_exposed_ms) == ((0.2, 0.1) if talks else (0.3, 0))


def test_stream_zero(written: Written) -> None:
    """6: on ROCm stream 0 is a real one, but its kernels get no step (`iteration`) in HTA. We have them in theirs."""
    written.kernel("Cijk_gemm", 100, 300, stream=0)
    written.kernel("Cijk_gemm", 300, 400, stream=3)
    hta, ours = written.read()
    frame = hta.t.get_trace(0)
    kernels = frame[frame["dur"].isin([200, 100]) & frame["stream"].ne(-1)]
    assert dict(zip(kernels["stream"], kernels["iteration"] == 1, strict=True)) == {0: False, 3: True}
    assert (ours.rows[0].compute_ms, ours.durations.in_steps) == (0.3, 2)


def test_delay_between_kernels(written: Written) -> None:
    """7: `consecutive_kernel_delay=30` is in nanoseconds by its documentation, in microseconds by its code. Ours does
    as the code does: kernels that follow each other within 30 us say nothing about who waited for whom."""
    for start in (100, 210, 360):  # gaps of 10 and 50 us; all launched at the beginning
        written.kernel("gemm", start, start + 100, lead=start)
    hta, ours = written.read()
    assert build_idle_of_hta(hta, [0]) == {
        (0, 7, "kernel_wait"): pytest.approx(10),
        (0, 7, "other"): pytest.approx(50),
    }
    assert build_idle(0, load_trace(written.path)) == ours.idle
    assert (ours.idle[0].kernel_wait_ms, ours.idle[0].other_ms) == (0.01, 0.05)
    assert (ours.rows[0].kernel_wait_ms, ours.rows[0].other_idle_ms) == (0.01, 0.146)  # also before the first
    assert ours.rows[0].launch_wait_ms == 0.004  # of it inside the first launch


def test_waiting_that_counts_as_work(written: Written) -> None:
    """8: events of category cuda_sync (a profiler option writes them) are waits, but hide the idle time below them."""
    written.kernel("gemm", 100, 200)
    written.trace.add(
        "cuda_sync", "Stream Wait Event", START + 200, START + 400, COMPUTE_STREAM, GPU, stream=7
    )
    written.kernel("gemm", 400, 500)
    hta, ours = written.read()
    assert find_temporal(hta)["idle_time(us)"] == pytest.approx(0)
    lanes = build_lanes(load_trace(written.path))
    assert [len(part) for part in lanes.union()] == [2, 2]
    assert ours.rows[0].compute_ms == 0.2 and ours.rows[0].idle_ms == 0.8


def test_overlap_of_nothing(written: Written) -> None:
    """9: without communication the overlap is not a number, and no error. Ours is unknown."""
    written.kernel("gemm", 100, 200)
    hta, ours = written.read()
    frame = hta.get_comm_comp_overlap(visualize=False)
    assert math.isnan(frame["comp_comm_overlap_pctg"][0])
    assert (ours.rows[0].comm_ms, ours.rows[0].comm_overlap_ms) == (0, 0)


def test_launch_that_is_event_zero(written: Written) -> None:
    """10: a kernel whose launch is not in the trace is joined to event 0 of the file, whatever that is: here a label
    that begins after the gap, so that the gap is the host's. Ours never waited for the host."""
    written.kernel("gemm", -100, -60, lead=50)
    place = {"device": 0, "stream": COMPUTE_STREAM, "correlation": 999}
    written.trace.add("kernel", "gemm", START - 50, START - 40, COMPUTE_STREAM, GPU, **place)
    written.kernel("gemm", 100, 200)
    hta, ours = written.read()
    assert build_idle_of_hta(hta, [0])[0, 7, "host_wait"] == pytest.approx(150)
    (row,) = ours.idle
    assert (row.host_wait_ms, row.kernel_wait_ms, row.other_ms) == (0.14, 0.01, 0)


def test_microseconds_since_1970(tmp_path: Path) -> None:
    """11: where times count from 1970, as some writers do, its float64 of microseconds has steps of 0.25 us. Ours are
    read from the decimals."""
    truth = simulate(
        tmp_path, Scene(ranks=1, kernel_ns=1_200, optimizer_kernels=30, launch_ns=500, origin_ns=10**9)
    )
    path = truth.files[0]
    path.write_text(
        re.sub(r'(?<="ts": )[\d.]+', lambda at: str(Decimal(at[0]) + 17 * 10**14), path.read_text())
    )
    compute_us = sum(step.compute for step in truth.steps.values()) / 1e3
    wrong = find_temporal(load_hta(truth.files))["compute_time(us)"]
    assert abs(wrong / compute_us - 1) > 1e-3
    (ours,) = measure_traces(truth.files).ranks
    assert sum(row.compute_ms for row in ours.rows) * 1e3 == pytest.approx(compute_us, rel=1e-12)


def test_in_flight_in_a_single_step(written: Written) -> None:
    """12: of a recording of one step it keeps what was launched before; of several it does not. Ours counts it in no
    step, and in no first step."""
    place = {"device": 0, "stream": COMPUTE_STREAM, "correlation": 1}
    written.trace.add("kernel", "gemm", START + 1, START + 401, COMPUTE_STREAM, GPU, **place)
    written.trace.correlation = 10
    written.kernel("gemm", 401, 501, lead=300)
    hta, ours = written.read()
    assert find_temporal(hta)["compute_time(us)"] == pytest.approx(500)
    (row,) = ours.rows
    assert (row.compute_ms, row.step_ms) == (0.1, 0.599)
    written.trace.label("ProfilerStep#2", START + 1000, START + 1010)
    again, _ = written.read()
    assert find_temporal(again)["compute_time(us)"] == pytest.approx(100)


def test_gap_after_the_launch(written: Written) -> None:
    """13: the whole gap before an event that was launched in it is the host's. Ours is until the launch; the table that
    follows HTA's rule says the same as HTA."""
    written.kernel("gemm", 0, 100)
    written.kernel("gemm", 600, 700, lead=490)
    hta, ours = written.read()
    assert build_idle_of_hta(hta, [0])[0, 7, "host_wait"] == pytest.approx(500)
    assert [row.host_wait_ms for row in ours.idle] == [0.5]
    (row,) = ours.rows
    assert (row.launch_wait_ms, row.idle_ms) == pytest.approx((0.49, row.host_wait_ms + 0.49))


def test_everything_is_found_in_the_rows_of_the_document() -> None:
    """Each case above has its row, by number."""
    text = (Path(__file__).parents[4] / "docs" / "hta.md").read_text()
    cases = [test.__doc__.partition(":")[0] for name, test in globals().items() if _is_case(name, test)]
    assert sorted(map(int, cases)) == list(range(1, 14))
    for number in cases:
        assert f"\n| {number} | " in text


def _is_case(name: str, test: Any) -> bool:
    return name.startswith("test_") and test.__doc__[0].isdigit()
