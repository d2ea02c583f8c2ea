"""Where Holistic Trace Analysis (0.6.1) is wrong: its number, the true one, and ours. Some rows of docs/hta.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis.dividing.lanes import build_lanes
from stratlab.analysis.measuring.measure import measure_traces
from stratlab.analysis.measuring.rank import RankAnalysis
from stratlab.traces.trace import load_trace
from tests.stratlab.analysis.hta.loading import build_kernels_of_hta, load_hta
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


def test_each_case_is_a_row_of_the_document() -> None:
    text = (Path(__file__).parents[4] / "docs" / "hta.md").read_text()
    docs = [test.__doc__ or "" for name, test in globals().items() if name.startswith("test_")]
    numbers = [doc.partition(":")[0] for doc in docs if doc[:1].isdigit()]
    assert numbers and all(f"\n| {number} | " in text for number in numbers)
