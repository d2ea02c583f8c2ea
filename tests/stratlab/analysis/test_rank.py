"""One rank's trace: what belongs to a step, which launch started what, which collective it is."""

import pytest

from stratlab.analysis.measure import measure_traces
from stratlab_spec.trace_events import COMMUNICATION_KERNEL, COMMUNICATION_LABEL
from tests.codes import find_codes
from tests.stratlab.simulated.small import (
    ALL_REDUCE,
    BACKWARD_THREAD,
    COMPUTE_STREAM,
    GPU,
    HOST,
    STEP_MS,
    TraceWriter,
    add_gpu_step,
    build_cpu_trace,
    build_gpu_trace,
)

UNLABELLED = "SL-phase-no-label"
LIGHTNING = "[pl][profile]"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
PEER, COPY = "Memcpy PtoP (Device -> Device)", "Memcpy DtoD (Device -> Device)"
STEP = ("label", "ProfilerStep#1", 1000, 2000)


def make(*calls, trace=None):
    """Calls of methods of a trace; named arguments last, in a dict."""
    made = trace or TraceWriter(0)
    for name, *given in calls:
        named = given.pop() if isinstance(given[-1], dict) else {}
        getattr(made, name)(*given, **named)
    return made


def analyse(trace, folder):
    (rank,) = measure_traces({0: trace.write(folder / "rank0_trace.json")}).ranks
    return rank


def tell(rank):
    """Of its rows each column; and what else cases look at."""
    columns = {name: [getattr(row, name) for row in rank.rows] for name in vars(rank.rows[0])}
    told = [finding.reason for finding in rank.findings]
    return columns | {
        "codes": [code for code in find_codes(told) if code != UNLABELLED],
        "unlabelled": find_codes(told).count(UNLABELLED),
        "told": [word for text in told for word in text.split() if word.isdigit()][:3],
        "kernels": [(row.name, row.count) for row in rank.kernels],
        "collectives": {row.collective: row.total_ms for row in rank.collectives},
        **{name: getattr(rank, name) for name in ("source", "steps_from", "phases", "unrecorded")},
        "in_steps": rank.durations.in_steps,
    }


def build_in_flight(until, **numbered):
    """Two steps of 400 us of GPU time, which begin on the GPU when it has ended what was in flight."""
    trace = make(
        ("add", "kernel", "gemm", 1001, 1000 + until, 7, GPU, {"device": 0, "stream": 7, **numbered})
    )
    trace.correlation = 10
    for i in range(2):
        at, begin = 1000 + 20 * i, 1000 + until + 400 * i  # the host is far ahead
        calls = [("label", f"## Training Step {5 + i} ##", at, at + 20)]
        calls += [
            ("kernel", "gemm", at + 5, begin, begin + 300),
            ("kernel", "gemm", at + 10, begin + 300, begin + 400),
        ]
        make(*calls, trace=trace)
    return trace


def build_lost_launch():
    """In the middle: the number of the call tells it from what was in flight."""
    place = {"device": 0, "stream": 9, "correlation": 12}
    trace = make(
        ("add", "kernel", "gemm", 1401, 1402, 9, GPU, place), trace=build_in_flight(2, correlation=3)
    )
    runtime = [e for e in trace.events if e["cat"] == "cuda_runtime" and e["args"]["correlation"] == 12]
    trace.events = [e for e in trace.events if e not in runtime]
    return trace


def build_unlabelled():
    trace = build_gpu_trace(0)
    trace.events = [event for event in trace.events if event["cat"] != "user_annotation"]
    place = {"stream": COMPUTE_STREAM}
    return make(("add", "kernel", "gemm", 5000.5, 5100.5, COMPUTE_STREAM, GPU, place), trace=trace)


def build_apart():
    """A validation between two recorded steps must not look like a slow step."""
    trace = TraceWriter(0)
    add_gpu_step(trace, 10, 1000)
    trace.kernel("validation", 2100, 2200, 4000)
    add_gpu_step(trace, 11, 5000)
    return trace


def build_data_before():
    trace = TraceWriter(0)
    for at in (1000, 3000):
        trace.label("## Data Loading ##", at, at + 300)
        add_gpu_step(trace, 10 + at // 3000, at + 400, without="data")
    return trace


def build_behind():
    """Steps of 100 us on the host. Each kernel begins when the one before it ends; the last is of no step."""
    times = [(5, 20, 70), (99.999, 70, 150), (100, 150, 260), (130, 260, 261), (199.999, 261, 333)]
    times += [(200, 333, 334), (299.999, 334, 400), (300, 400, 777)]
    labels = [("label", f"## Training Step {i + 1} ##", 1000 + 100 * i, 1100 + 100 * i) for i in range(3)]
    return make(*labels, *(("kernel", "gemm", *(1000 + at for at in each)) for each in times))


def build_idle_gpu():
    trace = build_cpu_trace(0)
    trace.head["deviceProperties"] = [{"id": 0, "name": "idle GPU"}]
    return trace


def build_doubled():
    trace = build_gpu_trace(0)
    trace.events += [event for event in trace.events if event["cat"] == "kernel"][:2]
    return trace


def load_data(label):
    return make(STEP, ("label", label, 1000, 1300), ("kernel", "gemm", 1310, 1320, 1900))


def close(inner):
    """Lightning gives `Optimizer.step` a closure that trains: it tells no phase."""
    labels = ("label", "Optimizer.step#SGD.step", 1100, 1950), ("label", inner, 1110, 1400)
    return make(STEP, *labels, ("kernel", "gemm", 1310, 1320, 1900))


WAITING = {"data_wait_ms": 0.0, "host_wait_ms": 0.0, "launch_wait_ms": 0.0, "other_idle_ms": 0.23}
LAGGING = [STEP_MS | {"step_ms": 1.65, "idle_ms": 0.88, "host_wait_ms": 0.0, "launch_wait_ms": 0.75}]
LAGGING += [STEP_MS | WAITING] * 2
IN_FLIGHT = {
    "step": [5, 6],
    "step_ms": [0.4, 0.4],
    "compute_ms": [0.4, 0.4],
    "codes": ["SL-events-in-flight"],
}
IN_FLIGHT |= {"told": ["1", "5"], "in_steps": 4}
DATA = {"data_ms": [0.3], "data_wait_ms": [0.3]}

TRACES = {
    "a step": (lambda: build_gpu_trace(0), {"step": [10, 11, 12], "source": "gpu", "codes": []}
               | {name: [ms] * 3 for name, ms in STEP_MS.items()}),
    # the GPU works 700 us behind: kernels of a step run under the next label; the first waits 700 us more
    "a GPU that lags": (lambda: build_gpu_trace(0, lag_us=700), {n: [row[n] for row in LAGGING] for n in STEP_MS}),
    "between two labels": (build_apart, {name: [ms] * 2 for name, ms in STEP_MS.items()}),
    "a step of a CPU": (lambda: build_cpu_trace(0), {name: [ms] * 3 for name, ms in {
        "step_ms": 0.1, "compute_ms": 0.07,  # not the collective's entry, not autograd's wrapper, not gloo's own thread
        "comm_ms": 0.04, "comm_overlap_ms": 0.02, "comm_exposed_ms": 0.02, "idle_ms": 0.01, "host_wait_ms": 0.01,
        "data_ms": 0.005, "forward_ms": 0.03, "backward_ms": 0.03, "optimizer_ms": 0.015}.items()}),
    "no label of the optimizer": (lambda: build_gpu_trace(0, without="optimizer"), {
        "phases": ["data", "forward", "backward"], "optimizer_ms": [None] * 3, "unlabelled": 1}),
    "no label of the data": (lambda: build_gpu_trace(0, without="data"), {"data_wait_ms": [None] * 3}),
    # from the first GPU event to the end of the last one, with what was in flight when the recording began
    "no step": (build_unlabelled, {"step": [1], "steps_from": "recording", "in_steps": 13, "step_ms": [2.95],
                                   "compute_ms": [2.05], "comm_ms": [0.9], "comm_exposed_ms": [0.3],
                                   "copy_exposed_ms": [0.06],
                                   "codes": ["SL-steps-of-recording", "SL-events-unlaunched"]}),
    "a step without a GPU": (lambda: make(("label", "## Training Step 13 ##", 8000.5, 9000.5),
                                          trace=build_gpu_trace(0)),
                             {"step": [10, 11, 12], "codes": ["SL-steps-without-gpu"], "told": ["1", "4"]}),
    "data before the step": (build_data_before, {"data_ms": [0.3, 0.3]}),
    "data of DataPipe": (lambda: load_data("enumerate(DataPipe)#MyPipe"), DATA),
    "data of Lightning": (lambda: load_data(f"{LIGHTNING}get_train_batch"), DATA),
    "data of Lightning's loop": (lambda: load_data(f"{LIGHTNING}[_TrainingEpochLoop].train_dataloader_next"), DATA),
    "data of torchtnt": (lambda: load_data("TrainUnit.train.next(data_iter)"), DATA),
    "no data": (lambda: load_data("[_Loop].train_dataloader_next"), {"data_ms": [None], "data_wait_ms": [None]}),
    "an optimizer that zeroes": (lambda: close("Optimizer.zero_grad#SGD.zero_grad"), {"optimizer_ms": [None]}),
    "an optimizer that trains": (lambda: close(f"{LIGHTNING}[Strategy]DDPStrategy.backward"), {"optimizer_ms": [None]}),
    "in flight": (lambda: build_in_flight(400, correlation=3), IN_FLIGHT),
    "in flight without a number": (lambda: build_in_flight(400), IN_FLIGHT),
    "a lost launch": (build_lost_launch, {"codes": ["SL-events-in-flight", "SL-events-unlaunched"]}),
    "launches of another device": (lambda: make(("add", "xpu_runtime", "urEnqueueKernelLaunch", 1001, 1002,
                                                 {"correlation": 5}), trace=build_cpu_trace(0)), {"unrecorded": 1}),
    "doubled events": (build_doubled, {"step_ms": [1.0] * 3, "codes": ["SL-events-doubled"], "told": ["2"]}),
    "events launched in a step": (build_behind, {
        "step": [1, 2, 3], "step_ms": [0.15, 0.183, 0.067], "compute_ms": [0.13, 0.183, 0.067],
        "idle_ms": [0.02, 0, 0], "in_steps": 7}),
    # operators are left out of GPU traces; without a GPU event they are all there is
    "a GPU that nothing used": (build_idle_gpu, {"source": "cpu", "compute_ms": [0.07] * 3}),
    # kernels on stream 0 (of ROCm); no operator of Triton, no wait of cuda_sync: rows 4, 6, 8 of docs/decisions/hta.md
    "what is work": (lambda: make(
        STEP, ("kernel", "Cijk_gemm", 1095, 1100, 1200, 0), ("kernel", "triton_poi_fused_add_0", 1195, 1200, 1300),
        ("add", "cpu_op", "triton_poi_fused_add_0", 1400, 1490, {"stream": 0, "grid": "grid(1,)"}),
        ("add", "cuda_sync", "Stream Wait Event", 1500, 1600, 7, GPU, {"stream": 7})),
        {"compute_ms": [0.2], "idle_ms": [0.8], "in_steps": 2,
         "kernels": [("Cijk_gemm", 1), ("triton_poi_fused_add_0", 1)]}),
    # one launch, one correlation id
    "a CUDA graph": (lambda: make(
        *(("add", kind, name, *at, 20, GPU, {"device": 0, "stream": 20, "correlation": 7}) for kind, name, at in (
            ("kernel", ALL_REDUCE, (1500, 1600)), ("gpu_memcpy", PEER, (1600, 1650)))),
        trace=launch(name="gemm")), {"collectives": {"all_reduce": 0.1, "send_recv": 0.05}, "compute_ms": [0.3]}),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_a_small_trace(name, tmp_path):
    build, expected = TRACES[name]
    found = tell(analyse(build(), tmp_path))
    for key, value in expected.items():
        assert found[key] == (pytest.approx(value) if key.endswith("_ms") and None not in value else value), (
            key
        )
    columns = (found[f"{part}_ms"] for part in ("step", "compute", "comm_exposed", "copy_exposed", "idle"))
    for step, *parts in zip(*columns, strict=True):
        assert sum(parts) == pytest.approx(step, abs=1e-9)


def test_overlapping_steps_of_one_number_are_refused(tmp_path):
    trace = make(
        ("add", "user_annotation", "## Training Step 11 ##", 6100, 7100, 9, 9), trace=build_gpu_trace(0)
    )
    found = measure_traces({0: trace.write(tmp_path / "rank0_trace.json")})
    assert not found.ranks and find_codes(found.findings[0].reason) == ["SL-step-at-once"]


def launch(*labels, name=SEND_RECV, **said):
    """A step with one GPU event, launched at 1100 us within labels of (category, name, args); it says `said`."""
    trace = make(STEP)
    trace.head["deviceProperties"] = [{"id": 0}]  # as of every real GPU: most operators are not kept
    for depth, (category, label, args) in enumerate(labels):
        trace.add(category, label, 1050 + depth, 1150 - depth, HOST, HOST, **args)
    trace.add("cuda_runtime", "cudaLaunchKernel", 1100, 1105, HOST, HOST, correlation=7)
    category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    trace.add(category, name, 1200, 1500, 20, GPU, device=0, stream=20, correlation=7, **said)
    return trace


LABEL = ("user_annotation", "nccl:all_to_all", {})
RECORD = ("cpu_op", "record_param_comms", {"Collective name": "all_to_allv", "Process Group Name": "3"})
GATHER = {"Collective name": "_allgather_base", "Process Group Name": "5"}


def op(name, category="cpu_op"):
    return category, name, {}


@pytest.mark.parametrize(
    ("labels", "name", "said", "collective"),
    [
        ([LABEL], SEND_RECV, {}, "all_to_all"),
        ([RECORD], SEND_RECV, {}, "all_to_all"),
        ([op("nccl:reduce_scatter", "user_annotation"), RECORD], SEND_RECV, {}, "all_to_all"),
        ([LABEL], SEND_RECV, GATHER, "all_gather"),  # the event's own word counts most
        ([op("## all_to_all ##", "user_annotation")], SEND_RECV, {}, "send_recv"),
        ([op("nccl:all_reduce", "user_annotation")], "ncclDevKernel_Generic(x)", {}, "all_reduce"),
        ([], COPY, GATHER, "all_gather"),  # by a copy engine
        ([LABEL], PEER, {}, "all_to_all"),
        ([LABEL], COPY, {}, None),  # beside the collective, as from its buffer
        # operators around the launch, whatever their category; less than a collective's name, the inner one of two
        ([op("c10d::allgather_into_tensor_coalesced_")], SEND_RECV, {}, "all_gather"),
        ([op("c10d::alltoall_", "Operator"), op("record_param_comms")], SEND_RECV, {}, "all_to_all"),
        ([op("_c10d_functional::wait_tensor")], SEND_RECV, {}, "send_recv"),
        ([op("mylib::all_to_all")], SEND_RECV, {}, "send_recv"),
        ([op("_c10d_functional::all_reduce"), op("c10d::alltoall_")], SEND_RECV, {}, "all_to_all"),
    ],
)
def test_collective(tmp_path, labels, name, said, collective):
    found = tell(analyse(launch(*labels, name=name, **said), tmp_path))
    assert [*found["collectives"]] == ([collective] if collective else [])
    assert found["comm_ms"] == [0.3 if collective else 0]


def test_label_on_another_thread_or_before_the_launch_is_none(tmp_path):
    for thread, end in ((BACKWARD_THREAD, 1150), (HOST, 1099)):
        trace = make(("add", "user_annotation", "nccl:all_to_all", 1050, end, thread, HOST), trace=launch())
        assert [*tell(analyse(trace, tmp_path))["collectives"]] == ["send_recv"]


TALK = """mscclKernel_Sum_half_Simple multimem_all_gather_kernel userbuffers_fp16_sum_inplace_gpu_rr
oneccl_allreduce_small hcclAllReduce hcom_allReduce__721_0 ccl::reduce_kernel<float> ncclSymkDevKernel_AllGather
deep_ep::intranode::dispatch<8,768>(int4*) dpsk::ep::internode::cached_notify<false>(int) nvshmemi_transfer_kernel<long>
vllm::cross_device_reduce_1stage<__nv_bfloat16,8>(RankData*) one_shot_all_reduce_kernel<c10::BFloat16,16>(long)"""
COMPUTE = """gemm cutlass_multi_gemm reduce_kernel<512> occlusion::mask
cdpsk::ep::CUB_200700_900_NS::DeviceScanKernel<Policy>(int*) deep_ep::internode::get_dispatch_layout<256,32,8>(long)"""


def test_names_that_communicate():
    """Of other libraries too, whose scans and layouts send nothing: row 5 of docs/decisions/hta.md."""
    for name in TALK.split():
        assert any(COMMUNICATION_KERNEL.search(at + name) for at in ("", "void ")), name
    assert not any(COMMUNICATION_KERNEL.search(f"void {name}") for name in COMPUTE.split())
    assert COMMUNICATION_KERNEL.search(PEER) and not COMMUNICATION_KERNEL.search(COPY)
    for name in ("nccl:a", "hccl:a", "xccl:a", "ccl:a", "gloo:a", "cncl:a", "mpi:a", "ucc:a"):
        assert COMMUNICATION_LABEL.search(name) and not COMMUNICATION_LABEL.search(f"aten::{name}")
