"""What was launched before the recording began belongs to no step; and other traces that are not what they seem."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis import measure
from stratlab.analysis.measure import measure_traces
from stratlab.analysis.rank import RankAnalysis
from stratlab.analysis.report import build_mean_row
from stratlab_spec.trace_events import COMMUNICATION_KERNEL, COMMUNICATION_LABEL
from tests.codes import find_codes
from tests.stratlab.real_traces import unpack
from tests.stratlab.simulated.scene import Scene
from tests.stratlab.simulated.small import (
    BACKWARD_THREAD,
    GPU,
    HOST,
    TraceWriter,
    build_cpu_trace,
    build_gpu_trace,
)
from tests.stratlab.simulated.team import simulate

IN_FLIGHT = "SL-events-in-flight"


def analyse(trace: TraceWriter, folder: Path) -> RankAnalysis:
    (rank,) = measure_traces({0: trace.write(folder / "rank0_trace.json")}).ranks
    return rank


def told(rank: RankAnalysis) -> dict[str, str]:
    return {code: finding.reason for finding in rank.findings for code in find_codes(finding.reason)}


def build_two_steps(in_flight_us: float, numbered: bool) -> TraceWriter:
    """Two steps of 400 us of GPU time, which begin on the GPU when it has ended what was in flight."""
    trace = TraceWriter(0)
    place = {"device": 0, "stream": 7} | ({"correlation": 3} if numbered else {})
    trace.add("kernel", "gemm", 1001, 1000 + in_flight_us, 7, GPU, **place)
    trace.correlation = 10
    for i in range(2):
        at = 1000 + 20 * i  # the host is far ahead
        trace.label(f"## Training Step {5 + i} ##", at, at + 20)
        begin = 1000 + in_flight_us + 400 * i
        trace.kernel("gemm", at + 5, begin, begin + 300)
        trace.kernel("gemm", at + 10, begin + 300, begin + 400)
    return trace


@pytest.mark.parametrize("numbered", [True, False])
def test_first_step_begins_when_what_was_in_flight_has_ended(tmp_path, numbered):
    found = analyse(build_two_steps(400, numbered), tmp_path)
    assert [(row.step, row.step_ms, row.compute_ms) for row in found.rows] == [(5, 0.4, 0.4), (6, 0.4, 0.4)]
    assert "1 of 5 " in told(found)[IN_FLIGHT]
    assert found.durations.in_steps == 4


def test_lost_launch_in_the_middle_counts_by_its_start(tmp_path):
    trace = build_two_steps(2, numbered=True)
    trace.add("kernel", "gemm", 1401, 1402, 9, GPU, device=0, stream=9, correlation=12)
    trace.events = [
        e for e in trace.events if not (e["cat"] == "cuda_runtime" and e["args"]["correlation"] == 12)
    ]
    found = told(analyse(trace, tmp_path))
    assert "1 of 6 " in found[IN_FLIGHT] and "2 of 6 " in found["SL-events-unlaunched"]


@pytest.mark.parametrize("steps", [1, 3])
def test_recording_that_begins_while_the_gpu_works(tmp_path, steps):
    scene = Scene(ranks=2, steps=3 + steps, sync=False, copy_exposed=False, loss_copy=False, data_ns=1_000)
    truth = simulate(tmp_path / "whole", scene)
    whole = measure_traces(truth.files, dict(scene.mesh)).ranks
    cut = {}
    for rank, path in truth.files.items():
        content = json.loads(path.read_text())
        label = f"## Training Step {scene.first_step + 3} ##"
        (begin,) = [
            e["ts"]
            for e in content["traceEvents"]
            if e.get("name") == label and e["cat"] == "user_annotation"
        ]
        content["traceEvents"] = [e for e in content["traceEvents"] if e["ph"] != "X" or e["ts"] >= begin]
        cut[rank] = tmp_path / f"rank{rank}_trace.json"
        cut[rank].write_text(json.dumps(content))
    measures = measure_traces(cut, dict(scene.mesh))
    for rank, before in zip(measures.ranks, whole, strict=True):
        assert IN_FLIGHT in told(rank)
        assert [asdict(row) for row in rank.rows] == [asdict(row) for row in before.rows[3:]]


def test_launches_without_kernels_of_a_real_trace(tmp_path):
    (rank,) = measure_traces(unpack("launches_without_kernels", tmp_path)).ranks
    assert build_mean_row([rank], {}, 1)["unrecorded_launches"] == 77  # by hand
    assert " 77 " in told(rank)["SL-launches-unrecorded"]


@pytest.mark.parametrize("category", ["mtia_runtime", "xpu_runtime", "sycl_driver"])
def test_launches_of_any_device_count(tmp_path, category):
    trace = build_cpu_trace(0)
    assert analyse(trace, tmp_path).unrecorded == 0
    trace.add(category, "urEnqueueKernelLaunch", 1001, 1002, correlation=5)
    assert analyse(trace, tmp_path).unrecorded == 1


def test_overlapping_steps_of_one_number_are_refused(tmp_path):
    trace = build_gpu_trace(0)
    trace.add("user_annotation", "## Training Step 11 ##", 6100, 7100, 9, 9)
    found = measure_traces({0: trace.write(tmp_path / "rank0_trace.json")})
    assert not found.ranks and find_codes(found.findings[0].reason) == ["SL-step-at-once"]


def test_doubled_events_are_told(tmp_path):
    trace = build_gpu_trace(0)
    whole = analyse(trace, tmp_path)
    trace.events += [event for event in trace.events if event["cat"] == "kernel"][:2]
    found = analyse(trace, tmp_path)
    assert [row.step_ms for row in found.rows] == [row.step_ms for row in whole.rows]
    assert told(found)["SL-events-doubled"].startswith("2 ")


def test_events_of_a_step_are_those_launched_in_it(tmp_path):
    """Steps of 100 us on the host. Each kernel begins when the one before it ends: the GPU is behind, as mostly."""
    trace = TraceWriter(0)
    for step in range(3):
        trace.label(f"## Training Step {step + 1} ##", 1000 + 100 * step, 1100 + 100 * step)
    first, second = [(5, 20, 70), (99.999, 70, 150)], [(100, 150, 260), (130, 260, 261), (199.999, 261, 333)]
    for times in [
        *first,
        *second,
        (200, 333, 334),
        (299.999, 334, 400),
        (300, 400, 777),
    ]:  # the last of no step
        trace.kernel("gemm", *(1000 + at for at in times))
    found = analyse(trace, tmp_path)
    rows = [(row.step, row.step_ms, row.compute_ms, row.idle_ms) for row in found.rows]
    assert rows == [(1, 0.15, 0.13, 0.02), (2, 0.183, 0.183, 0), (3, 0.067, 0.067, 0)]
    assert found.durations.in_steps == 7


AXES = {"dp_replicate": 2, "dp_shard": 1}


@pytest.mark.parametrize("processes", [None, 2])
def test_small_traces_and_a_pod_without_semaphores_start_no_process(tmp_path, monkeypatch, processes):
    def refuse(*_: object, **__: object) -> None:
        assert processes
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(measure, "ProcessPoolExecutor", refuse)
    files = {rank: build_cpu_trace(rank).write(tmp_path / f"{rank}.json") for rank in range(2)}
    assert len(measure_traces(files, AXES, processes=processes).ranks) == 2


def test_a_gpu_in_sight_that_nothing_used(tmp_path):
    trace = build_cpu_trace(0)
    trace.head["deviceProperties"] = [{"id": 0, "name": "idle GPU"}]
    (rank,) = measure_traces({0: trace.write(tmp_path / "0.json")}, AXES).ranks
    assert rank.source == "cpu" and rank.rows[0].compute_ms == 0.07


def test_what_is_work_of_the_gpu(tmp_path):
    """Kernels on stream 0 (ROCm has a real one); no operator of Triton with a stream, and no wait of cuda_sync. HTA
    thinks otherwise: rows 4, 6 and 8 of docs/decisions/hta.md."""
    trace = TraceWriter(0)
    trace.label("ProfilerStep#1", 1000, 2000)
    trace.kernel("Cijk_gemm", 1095, 1100, 1200, stream=0)
    trace.kernel("triton_poi_fused_add_0", 1195, 1200, 1300)
    trace.add("cpu_op", "triton_poi_fused_add_0", 1400, 1490, stream=0, grid="grid(1,)")
    trace.add("cuda_sync", "Stream Wait Event", 1500, 1600, 7, GPU, stream=7)
    found = analyse(trace, tmp_path)
    assert (found.rows[0].compute_ms, found.rows[0].idle_ms, found.durations.in_steps) == (0.2, 0.8, 2)
    assert [(row.name, row.count) for row in found.kernels] == [
        ("Cijk_gemm", 1),
        ("triton_poi_fused_add_0", 1),
    ]


SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
PEER = "Memcpy PtoP (Device -> Device)"
COPY = "Memcpy DtoD (Device -> Device)"


def write(*labels: tuple[str, str, dict[str, Any]], name: str = SEND_RECV, **said: Any) -> TraceWriter:
    """A step with one GPU event, launched at 1100 us within labels of (category, name, args); it says `said`."""
    trace = TraceWriter(0)
    trace.head["deviceProperties"] = [{"id": 0}]  # as of every real GPU: most operators are not kept
    trace.label("ProfilerStep#1", 1000, 2000)
    for depth, (category, label, args) in enumerate(labels):
        trace.add(category, label, 1050 + depth, 1150 - depth, HOST, HOST, **args)
    trace.add("cuda_runtime", "cudaLaunchKernel", 1100, 1105, HOST, HOST, correlation=7)
    category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    trace.add(category, name, 1200, 1500, 20, GPU, device=0, stream=20, correlation=7, **said)
    return trace


LABEL = ("user_annotation", "nccl:all_to_all", {})
RECORD = ("cpu_op", "record_param_comms", {"Collective name": "all_to_allv", "Process Group Name": "3"})
GATHER = {"Collective name": "_allgather_base", "Process Group Name": "5"}


CASES: list[tuple[list[Any], str, dict[str, Any], str | None]] = [
    ([LABEL], SEND_RECV, {}, "all_to_all"),
    ([RECORD], SEND_RECV, {}, "all_to_all"),
    ([("user_annotation", "nccl:reduce_scatter", {}), RECORD], SEND_RECV, {}, "all_to_all"),
    ([LABEL], SEND_RECV, GATHER, "all_gather"),  # the event's own word counts most
    ([("user_annotation", "## all_to_all ##", {})], SEND_RECV, {}, "send_recv"),
    ([("user_annotation", "nccl:all_reduce", {})], "ncclDevKernel_Generic(x)", {}, "all_reduce"),
    ([], COPY, GATHER, "all_gather"),  # by a copy engine
    ([LABEL], PEER, {}, "all_to_all"),
    ([LABEL], COPY, {}, None),  # beside the collective, as from its buffer
    # operators around the launch, whatever their category; less than a collective's name, the inner one of two
    ([("cpu_op", "c10d::allgather_into_tensor_coalesced_", {})], SEND_RECV, {}, "all_gather"),
    (
        [("Operator", "c10d::alltoall_", {}), ("cpu_op", "record_param_comms", {})],
        SEND_RECV,
        {},
        "all_to_all",
    ),
    ([("cpu_op", "_c10d_functional::wait_tensor", {})], SEND_RECV, {}, "send_recv"),
    ([("cpu_op", "mylib::all_to_all", {})], SEND_RECV, {}, "send_recv"),
    ([("cpu_op", "c10d::alltoall_base_", {})], SEND_RECV, GATHER, "all_gather"),
    (
        [("cpu_op", "_c10d_functional::all_reduce", {}), ("cpu_op", "c10d::alltoall_", {})],
        SEND_RECV,
        {},
        "all_to_all",
    ),
]


@pytest.mark.parametrize(("labels", "name", "said", "collective"), CASES)
def test_collective(tmp_path, labels, name, said, collective):
    rank = analyse(write(*labels, name=name, **said), tmp_path)
    assert [row.collective for row in rank.collectives] == ([collective] if collective else [])
    (row,) = rank.rows
    assert row.comm_ms == (0.3 if collective else 0)
    assert [k.type for k in rank.kernels] == [
        "comm" if collective else "copy" if name.startswith("Memcpy") else "compute"
    ]


def test_label_on_another_thread_or_before_the_launch_is_none(tmp_path):
    for thread, end in ((BACKWARD_THREAD, 1150), (HOST, 1099)):
        trace = write()
        trace.add("user_annotation", "nccl:all_to_all", 1050, end, thread, HOST)
        assert [row.collective for row in analyse(trace, tmp_path).collectives] == ["send_recv"]


def test_events_of_a_graph_are_told_apart_by_their_names(tmp_path):
    trace = write(("user_annotation", "my graph", {}), name="gemm")
    place = {"device": 0, "stream": 20, "correlation": 7}
    trace.add("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 1500, 1600, 20, GPU, **place)
    trace.add("gpu_memcpy", PEER, 1600, 1650, 20, GPU, **place)
    rank = analyse(trace, tmp_path)
    assert {row.collective: row.total_ms for row in rank.collectives} == {
        "all_reduce": 0.1,
        "send_recv": 0.05,
    }
    assert rank.rows[0].compute_ms == 0.3


@pytest.mark.parametrize("runtime", ["xpu_runtime", "hip_driver", "something new"])
def test_any_host_event_with_the_correlation_id_is_the_launch(tmp_path, runtime):
    trace = write(name="gemm")
    trace.add("overhead", "Activity Buffer Request", 1020, 1030, HOST, HOST)
    for event in trace.events:
        event["cat"] = runtime if event["cat"] == "cuda_runtime" else event["cat"]
    (row,) = analyse(trace, tmp_path).rows
    assert (row.host_wait_ms, row.launch_wait_ms) == pytest.approx((0.1 + 0.5, 0.1))
    trace = write(name="gemm")  # a runtime's call comes before other events of its id
    trace.add("overhead", "Activity Buffer Request", 1020, 1030, HOST, HOST, correlation=7)
    assert analyse(trace, tmp_path).rows[0].launch_wait_ms == pytest.approx(0.1)


TALK = """mscclKernel_Sum_half_Simple multimem_all_gather_kernel userbuffers_fp16_sum_inplace_gpu_rr
oneccl_allreduce_small hcclAllReduce hcom_allReduce__721_0 ccl::reduce_kernel<float> ncclSymkDevKernel_AllGather
deep_ep::intranode::dispatch<8,768>(int4*) dpsk::ep::internode::cached_notify<false>(int) nvshmemi_transfer_kernel<long>
vllm::cross_device_reduce_1stage<__nv_bfloat16,8>(RankData*) one_shot_all_reduce_kernel<c10::BFloat16,16>(long)"""
COMPUTE = """gemm cutlass_multi_gemm reduce_kernel<512> occlusion::mask
cdpsk::ep::CUB_200700_900_NS::DeviceScanKernel<Policy>(int*) deep_ep::internode::get_dispatch_layout<256,32,8>(long)"""


def test_names_that_communicate():
    """Of other libraries too, whose scans and layouts send nothing: row 5 of docs/decisions/hta.md."""
    found = {
        name for name in TALK.split() if any(COMMUNICATION_KERNEL.search(at + name) for at in ("", "void "))
    }
    assert found == set(TALK.split())
    assert not any(COMMUNICATION_KERNEL.search(f"void {name}") for name in COMPUTE.split())
    assert COMMUNICATION_KERNEL.search(PEER) and not COMMUNICATION_KERNEL.search(COPY)
    for name in ("nccl:a", "hccl:a", "xccl:a", "ccl:a", "gloo:a", "cncl:a", "mpi:a", "ucc:a"):
        assert COMMUNICATION_LABEL.search(name) and not COMMUNICATION_LABEL.search(f"aten::{name}")
