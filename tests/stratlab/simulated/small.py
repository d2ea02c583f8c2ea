"""GPU and CPU traces with known answers, in Kineto's own formatting.

`add_gpu_step` writes one step of 1000 us whose breakdown is STEP_MS, whatever the rest of the trace holds.
"""

import gzip
import hashlib
import json

HOST, BACKWARD_THREAD, GPU = 4000, 4001, 0
COMPUTE_STREAM, COMM_STREAM, COPY_STREAM = 7, 20, 21
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

# of one step of add_gpu_step, ms
STEP_MS = {"step_ms": 1.0, "host_step_ms": 1.0, "compute_ms": 0.65, "copy_ms": 0.02, "copy_exposed_ms": 0.02}
STEP_MS |= {"comm_ms": 0.3, "comm_overlap_ms": 0.2, "comm_exposed_ms": 0.1, "straggler_ms": 0.0}
STEP_MS |= {
    "bubble_ms": 0.0,
    "idle_ms": 0.23,
    "data_wait_ms": 0.1,
    "host_wait_ms": 0.05,
    "launch_wait_ms": 0.05,
}
STEP_MS |= {"kernel_wait_ms": 0.0, "other_idle_ms": 0.03, "data_ms": 0.1, "forward_ms": 0.3}
STEP_MS |= {"backward_ms": 0.4, "optimizer_ms": 0.05}


class TraceWriter:
    """Collects the events of one rank; times in us."""

    def __init__(self, rank, backend="nccl", world_size=2):
        self.events = []
        self.head = {"schemaVersion": 1, "deviceProperties": []}
        if rank is not None:
            self.head["distributedInfo"] = {"backend": backend, "rank": rank, "world_size": world_size}
        self.correlation = 0

    def add(self, cat, name, start, end, tid=HOST, pid=HOST, **args):
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": end - start}
        self.events.append(event | {"args": args})

    def label(self, name, start, end):
        self.add("user_annotation", name, start, end)

    def kernel(self, name, launch, start, end, stream=COMPUTE_STREAM, tid=HOST):
        """An operator, its launch at `launch`, and what it started on the GPU."""
        self.correlation += 1
        copies = name.startswith("Memcpy")
        self.add("cpu_op", "aten::copy_" if copies else "aten::linear", launch - 1, launch + 6, tid)
        runtime = "cudaMemcpyAsync" if copies else "cudaLaunchKernel"
        self.add("cuda_runtime", runtime, launch, launch + 4, tid, correlation=self.correlation)
        extra = {"bytes": 4096, "memory bandwidth (GB/s)": 0.2} if copies else {}
        category = "gpu_memcpy" if copies else "kernel"
        place = {"device": 0, "stream": stream, "correlation": self.correlation}
        self.add(category, name, start, end, stream, GPU, **place, **extra)

    def memory(self, at, allocated, reserved, device_type=1):
        """One `[memory]` instant."""
        args = {"Total Allocated": allocated, "Total Reserved": reserved, "Device Type": device_type}
        event = {
            "ph": "i",
            "cat": "cpu_instant_event",
            "s": "t",
            "name": "[memory]",
            "pid": HOST,
            "tid": HOST,
        }
        self.events.append(event | {"ts": at, "args": args | {"Device Id": 0}})

    def text(self):
        """As Kineto writes it: every event ends with a line `  },`."""
        head = "".join(f'  "{key}": {json.dumps(value)},\n' for key, value in self.head.items())
        events = ",\n".join("  " + json.dumps(event, indent=2).replace("\n", "\n  ") for event in self.events)
        return f'{{\n{head}  "traceEvents": [\n{events}\n  ],\n  "traceName": "synthetic"\n}}\n'

    def write(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


def add_gpu_step(trace, step, at, lag_us=0.0, comm_start=600, without=""):
    """One step that begins at `at` on the host; the GPU works `lag_us` later than it could.

    Args:
        comm_start: when the all-reduce, which ends at 900, starts.
        without: a phase that gets no label.
    """
    spans = {"Data Loading": (0, 100), "Forward Pass": (100, 400), "Backward Pass": (400, 800)}
    spans["Optimizer Step"] = (800, 950)
    for name, (start, end) in spans.items():
        if not (without and name.lower().startswith(without)):
            trace.label(f"## {name} ##", at + start, at + end)
    gpu = at + lag_us
    trace.kernel("Memcpy HtoD (Pinned -> Device)", at + 50, gpu + 150, gpu + 170, COPY_STREAM)
    trace.kernel("sm90_gemm<float>", at + 110, gpu + 200, gpu + 500)
    trace.kernel("sm90_gemm_backward<float>", at + 410, gpu + 500, gpu + 800, tid=BACKWARD_THREAD)
    trace.kernel(ALL_REDUCE, at + 420, gpu + comm_start, gpu + 900, COMM_STREAM, BACKWARD_THREAD)
    trace.kernel("adamw", at + 810, gpu + 900, gpu + 950)
    # Kineto projects labels onto the GPU; they are neither labels of the host nor work
    trace.add("gpu_user_annotation", "## Forward Pass ##", gpu + 200, gpu + 500, COMPUTE_STREAM, GPU)
    trace.label(f"## Training Step {step} ##", at, at + 1000)
    trace.label(f"ProfilerStep#{step - 10}", at, at + 1000)


def build_gpu_trace(rank, steps=3, **options):
    """Steps 10, 11, ... one after the other."""
    trace = TraceWriter(rank)
    for i in range(steps):
        add_gpu_step(trace, 10 + i, 5000.5 + 1000 * i, **options)
    return trace


def build_cpu_trace(rank, steps=3):
    """Steps of 100 us: operators 0-40 and 60-90, gloo 30-70, one accumulated forward and backward more."""
    trace = TraceWriter(rank, "gloo")
    for i in range(steps):
        at = 1000.0 + 100 * i
        trace.label(f"## Training Step {10 + i} ##", at, at + 100)
        trace.label("## Data Loading ##", at, at + 5)
        for start in (5, 50):
            trace.label("## Forward Pass ##", at + start, at + start + 15)
            trace.label("## Backward Pass ##", at + start + 15, at + start + 30)
        trace.label("## Optimizer Step ##", at + 80, at + 95)
        trace.add("cpu_op", "aten::linear", at, at + 40)
        trace.add("cpu_op", "aten::mm", at + 10, at + 35)
        trace.add("cpu_op", "aten::add_", at + 60, at + 90)
        trace.add("cpu_op", "c10d::allreduce_", at + 40, at + 60)
        trace.add("cpu_op", "autograd::engine::evaluate_function: AddBackward0", at + 40, at + 95)
        trace.add("cpu_op", "RegisterPostBackwardFunctionBackward", at + 41, at + 94)
        trace.add("user_annotation", "gloo:all_reduce", at + 30, at + 70, tid=77)
        trace.add("cpu_op", "aten::add_", at + 30, at + 70, tid=77)
    return trace


def write_run(folder, traces, manifest=True, **changes):
    """A run directory with config.json and these traces. `changes` go into the resolved part of config.json."""
    for rank, trace in traces.items():
        trace.write(folder / "traces" / f"rank{rank}_trace.json")
    world = max(len(traces), 1)
    resolved = {"world_size": world, "nodes": 1, "axes": {"dp_replicate": world, "dp_shard": 1}, "steps": 600}
    resolved |= {"backend": "nccl", "device_type": "cuda", "device_name": "synthetic", **changes}
    config = {"strategy": "ddp", "model": "vit_tiny", "dataset": "digits", "precision": "fp32", "seed": 0}
    versions = {"created": "2026-11-21T09:00:00Z", "versions": {"torch": "2.13.0"}}
    content = {"schema_version": 1, "run": folder.name, "comparison": "demo"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps(content | {"config": config, "resolved": resolved, "provenance": versions})
    )
    if manifest:
        write_manifest(folder / "traces")
    return folder


def write_manifest(folder, **changes):
    """traces/manifest.json over the rank files as they are now."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [
        {
            "rank": int(path.name.removeprefix("rank").partition("_")[0]),
            "file": path.name,
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(folder.glob("rank*_trace.json*"))
    ]
    content = {"schema_version": 1, "complete": True, "first_step": 10, "steps": 3, "files": files}
    (folder / "manifest.json").write_text(json.dumps(content | changes))
