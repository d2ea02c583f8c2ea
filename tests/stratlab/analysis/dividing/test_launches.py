"""Which host event launched a GPU event, and which collective it belongs to, on a few events that one can count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis.measure import measure_traces
from stratlab.analysis.rank import RankAnalysis
from stratlab_spec.trace_events import COMMUNICATION_KERNEL, COMMUNICATION_LABEL
from tests.stratlab.simulated.small import BACKWARD_THREAD, GPU, HOST, TraceWriter

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


def analyse(trace: TraceWriter, folder: Path) -> RankAnalysis:
    (rank,) = measure_traces({0: trace.write(folder / "rank0_trace.json")}).ranks
    return rank


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
def test_collective(
    tmp_path: Path, labels: list[Any], name: str, said: dict[str, Any], collective: str | None
) -> None:
    rank = analyse(write(*labels, name=name, **said), tmp_path)
    assert [row.collective for row in rank.collectives] == ([collective] if collective else [])
    (row,) = rank.rows
    assert row.comm_ms == (0.3 if collective else 0)
    assert [k.type for k in rank.kernels] == [
        "comm" if collective else "copy" if name.startswith("Memcpy") else "compute"
    ]


def test_label_on_another_thread_or_before_the_launch_is_none(tmp_path: Path) -> None:
    for thread, end in ((BACKWARD_THREAD, 1150), (HOST, 1099)):
        trace = write()
        trace.add("user_annotation", "nccl:all_to_all", 1050, end, thread, HOST)
        assert [row.collective for row in analyse(trace, tmp_path).collectives] == ["send_recv"]


def test_events_of_a_graph_are_told_apart_by_their_names(tmp_path: Path) -> None:
    """One launch, one correlation id: the kernels and copies of a CUDA graph."""
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
def test_any_host_event_with_the_correlation_id_is_the_launch(tmp_path: Path, runtime: str) -> None:
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


def test_names_that_communicate() -> None:
    """Of other libraries too, whose scans and layouts send nothing: row 5 of docs/hta.md."""
    found = {
        name for name in TALK.split() if any(COMMUNICATION_KERNEL.search(at + name) for at in ("", "void "))
    }
    assert found == set(TALK.split())
    assert not any(COMMUNICATION_KERNEL.search(f"void {name}") for name in COMPUTE.split())
    assert COMMUNICATION_KERNEL.search(PEER) and not COMMUNICATION_KERNEL.search(COPY)
    for name in ("nccl:a", "hccl:a", "xccl:a", "ccl:a", "gloo:a", "cncl:a", "mpi:a", "ucc:a"):
        assert COMMUNICATION_LABEL.search(name) and not COMMUNICATION_LABEL.search(f"aten::{name}")
