"""A complete report of schema_version 2 without a trace: every key, numbers that add up.

    build_example()                                  two GPU ranks, 3 steps, one all-reduce
    build_example(source="cpu")                      host operator time, no kernels, no copies
    build_example(ranks=512, slow={17: 1.2})         rank 17 computes 1.2 times as long
    build_example(pp=4)                              with a bubble and its ideal

A step is 100 ms. Everything follows from the arguments.
"""

import math
from types import SimpleNamespace

import numpy as np

from stratlab.analysis.kernels import KernelRow
from stratlab.analysis.step_rows import MemoryPoint
from stratlab.analysis.time_breakdown import BINS, STATES, DrawnCall, DrawnStep

PARTS = {"compute": 60.0, "comm": 12.0, "straggler": 3.0, "copy": 1.0, "data": 4.0, "host": 9.0}
PARTS |= {"launch": 0.0, "kernel_wait": 1.0, "other_idle": 10.0, "bubble": 0.0}
PHASES = {"data": 0.05, "forward": 0.3, "backward": 0.5, "optimizer": 0.1, "other": 0.05}
STEPS = (10, 11, 12)
HOSTILE = "<script>alert(1)</script>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def build_example(source="gpu", ranks=2, pp=1, slow=None, collectives=True):
    """As `stratlab analyze` writes it."""
    gpu = source == "gpu"
    parts = dict(PARTS)
    if not gpu:
        parts |= {"host": 21.0, "kernel_wait": 0.0, "other_idle": 0.0, "copy": 0.0}
    if not collectives:
        parts |= {"comm": 0.0, "straggler": 0.0, "other_idle": parts["other_idle"] + 15.0}
    if pp > 1:
        parts |= {"bubble": 20.0, "compute": 40.0}
    times = [_scale(parts, (slow or {}).get(rank, 1.0)) for rank in range(ranks)]
    mean = {name: sum(t[name] for t in times) / ranks for name in parts}
    compute = [t["compute"] for t in times]
    run = _run(source, ranks, pp)
    whole = {"bubble_ideal_pct": 100 * (pp - 1) / (2 + pp - 1) if pp > 1 else None}
    whole |= {"compute_imbalance": max(compute) / (sum(compute) / ranks)}
    whole |= {"slowest_rank": compute.index(max(compute)) if ranks > 1 else None}
    report = {"schema_version": 2, "run": run, "source": source, "steps_from": "labels"}
    report["note"] = "" if gpu else "CPU trace: host operator time, not GPU utilisation"
    report |= {"backend": run["backend"], "device": run["device_name"]}
    report["mean"] = {"ranks": ranks, "steps": len(STEPS), **_means(mean, gpu), **whole}
    talks = {"collective": "all_reduce", "axis": "dp_replicate"}
    report["parts"] = [
        {"part": name, "ms": ms, **(talks if name == "comm" else dict.fromkeys(talks))}
        for name, ms in mean.items()
    ]
    report["forecast"] = {"step_ms": None, "reason": "the run has no forecast"}
    report["ranks"] = [
        {"rank": i, "host": f"node{i // 8}", "steps": len(STEPS), **_means(t, gpu)}
        for i, t in enumerate(times)
    ]
    report["steps"] = [_step(rank, step, t, source) for rank, t in enumerate(times) for step in STEPS]
    report["phases"] = [
        {"rank": rank, "step": step, "phase": phase, **_times(_scale(t, share), "span_ms")}
        for rank, t in enumerate(times)
        for step in STEPS
        for phase, share in PHASES.items()
    ]
    report["collectives"] = [_collective(i, gpu, t) for i, t in enumerate(times)] if collectives else []
    report["kernels"] = [row for rank in range(ranks) for row in _kernels(rank)] if gpu else []
    durations = {"edges_us": [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0], "copy": [2, 8, 1, 0, 0, 0]}
    durations |= {"compute": [0, 40, 200, 90, 30, 10], "comm": [0, 0, 0, 5, 20, 0]}
    durations |= {"short": 48, "in_steps": 1200 * ranks}
    report["durations"] = durations if gpu else None
    report["copies"] = [
        {"rank": rank, "kind": kind, "count": 30, "bytes": size, "total_ms": 3.0, "gbps": gbps}
        for rank in range(ranks)
        for kind, size, gbps in (("HtoD", 60_000_000, 20.0), ("Memset", None, None))
        if gpu
    ]
    idle = {"device": 0, "stream": 7, "host_wait_ms": 27.0, "kernel_wait_ms": 3.0, "other_ms": 30.0}
    report["idle"] = [{"rank": rank, **idle} for rank in range(ranks) if gpu]
    report["clocks"] = {"aligned": False, "residual_ms": 0.004, "matched": 60, "reason": "below 1 ms"}
    report["clocks"]["offsets_ms"] = {str(rank): 0.002 * rank for rank in range(ranks)}
    report["merged"] = {"file": "merged_trace.json.gz", "ranks": list(range(ranks)), "events": 4000 * ranks}
    report["merged"] |= {"flows": 900 * ranks, "bytes": 90_000 * ranks, "reason": ""}
    report |= {"recordings": [], "recommendations": [], "quality": []}
    report["phases_present"] = {str(rank): list(PHASES)[:-1] for rank in range(ranks)}
    breakdown = {"status": "ok", "reason": "", "tables": ["temporal_breakdown.csv"]}
    none = {"status": "unsupported", "reason": "needs GPU kernels", "tables": []}
    report["hta"] = [
        {"analysis": "profiler_steps", "status": "ok", "reason": "", "seconds": 0.01, "tables": []},
        {"analysis": "temporal_breakdown", "seconds": 0.2, **(breakdown if gpu else none)},
    ]
    report["hta_ranks"] = {"ranks": list(range(ranks)), "reason": ""}
    return report | {"mlflow": {"status": "not configured", "reason": ""}}


def blank(content, keep=("rank", "step", "ranks", "steps")):
    """The same with every number unknown (None), but those under `keep`."""
    if isinstance(content, dict):
        return {
            key: value if key in keep and isinstance(value, int) else blank(value, keep)
            for key, value in content.items()
        }
    if isinstance(content, list):
        return [blank(value, keep) for value in content]
    return None if isinstance(content, int | float) and not isinstance(content, bool) else content


def _run(source, ranks, pp):
    nodes = 1 if ranks <= 8 else ranks // 8
    run = {"run": "ddp", "comparison": "demo", "strategy": "ddp", "model": "vit_base"}
    run |= {"dataset": "digits", "precision": "bf16", "seed": 0, "global_batch_size": 64 * ranks}
    run |= {"micro_batch_size": 32, "grad_accum_steps": 2, "steps": 600, "profile_steps": 3}
    run |= {"world_size": ranks, "nodes": nodes, "machines": nodes, "initial_weights": "random weights"}
    gpu = {"backend": "nccl", "device_type": "cuda", "device_name": "NVIDIA H200"}
    cpu = {"backend": "gloo", "device_type": "cpu", "device_name": "Example CPU, 4 cores"}
    run |= gpu if source == "gpu" else cpu
    run["axes"] = {"dp_replicate": ranks // pp} | ({"pp": pp} if pp > 1 else {"dp_shard": 1})
    run |= {"torch": "2.13.0", "created": "2026-11-21T09:00:00Z", "finished": True, "test_accuracy_pct": 97.0}
    transport = ("transport_in_node", "transport_between_nodes", "gpudirect", "transport_fell_back")
    run |= dict.fromkeys(transport)
    return run | {"step_time_ms_p50": 95.0, "samples_per_s": 673.0, "measured_steps": 590}


def _scale(parts, factor):
    return {name: factor * ms for name, ms in parts.items()}


def _times(t, whole):
    exposed = t["comm"] + t["straggler"] + t["bubble"]
    times = {whole: sum(t.values()), "compute_ms": t["compute"], "comm_ms": exposed + 0.5 * t["comm"]}
    times |= {"comm_overlap_ms": 0.5 * t["comm"], "comm_exposed_ms": exposed, "straggler_ms": t["straggler"]}
    times |= {"bubble_ms": t["bubble"], "copy_ms": 2 * t["copy"], "copy_exposed_ms": t["copy"]}
    times["idle_ms"] = t["data"] + t["host"] + t["kernel_wait"] + t["other_idle"]
    times |= {"data_wait_ms": t["data"], "host_wait_ms": t["host"], "launch_wait_ms": t["launch"]}
    return times | {"kernel_wait_ms": t["kernel_wait"], "other_idle_ms": t["other_idle"]}


def _step(rank, step, t, source):
    whole = sum(t.values())
    labels = {f"{phase}_ms": share * whole for phase, share in PHASES.items() if phase != "other"}
    row = {"rank": rank, "step": step, "source": source, "host_step_ms": whole}
    return row | _times(t, "step_ms") | labels


def _means(t, gpu):
    times = _times(t, "step_ms")
    step = times.pop("step_ms")
    row = {"step_ms": step, "host_step_ms": step}
    row |= {name.replace("_ms", "_pct"): 100 * ms / step for name, ms in times.items() if name != "copy_ms"}
    row["comm_overlap_pct"] = 100 * times["comm_overlap_ms"] / times["comm_ms"] if times["comm_ms"] else None
    row |= {f"{phase}_ms": share * step for phase, share in PHASES.items() if phase != "other"}
    row |= {"gap_label": None, "d2h_gbps": None, "d2d_gbps": None, "comm_bytes_per_step": 818_216}
    row |= {"unrecorded_launches": None if gpu else 0, "allocations_per_step": 900.0}
    of_gpu = {"gap_kind": "short", "short_gap_pct": 80.0, "first_gap_pct": 0.0, "longest_gap_ms": 0.9}
    of_gpu |= {"kernels_per_step": 400, "kernel_us_p50": 22.0, "short_kernel_pct": 20.0, "h2d_gbps": 20.0}
    of_gpu |= {"peak_allocated_gib": 91.0, "peak_reserved_gib": 98.0, "device_memory_gib": 140.0}
    return row | (of_gpu if gpu else dict.fromkeys(of_gpu))


def _collective(rank, gpu, t):
    row = {"rank": rank, "name": ALL_REDUCE if gpu else "gloo:all_reduce", "count": 30}
    row |= {"collective": "all_reduce", "axis": "dp_replicate", "bytes": 2_454_648}
    row |= {"total_ms": 3 * 1.75 * t["comm"], "exposed_ms": 3 * (t["comm"] + t["straggler"])}
    row |= {"wait_ms": 3 * t["straggler"], "exposed_wait_ms": 3 * t["straggler"]}
    return row | {"arrived_last": {0: 10, 1: 20}.get(rank, 0)}


def _kernels(rank):
    rows = (
        (f"sm90_xmma_gemm_bf16{HOSTILE}", "compute", 300, 60.0),
        ("flash_fwd_kernel", "compute", 90, 54.0),
        ("elementwise_kernel<4>", "compute", 600, 54.0),
        (ALL_REDUCE, "comm", 30, 63.0),
        ("Memcpy HtoD (Pinned -> Device)", "copy", 30, 6.0),
    )
    factors = {"mean_us": 1000, "p50_us": 900, "p95_us": 1500, "max_us": 2000}
    return [
        {"rank": rank, "name": name, "type": kind, "count": count, "sum_ms": ms, "pct": 100 * ms / 237}
        | {key: factor * ms / count for key, factor in factors.items()}
        for name, kind, count, ms in rows
    ]


def build_example_ranks(report):
    """What the page and the tables read of the report's ranks: a step computes in its first half, then communicates,
    then waits for the host."""
    compute, comm, host = (STATES.index(name) for name in ("compute", "comm_exposed", "host_wait"))
    states = np.repeat(np.array([compute, compute, comm, host], np.uint8), BINS // 4)
    device = "cuda:0" if report["source"] == "gpu" else "cpu"
    points = range(300 if len(report["ranks"]) <= 16 else 20)
    return [
        SimpleNamespace(
            rank=rank,
            source=report["source"],
            drawn=_draw(step_ms, states),
            memory=[MemoryPoint(rank, device, 1.0 * i, 100.0 + 10 * math.sin(i / 20), 128.0) for i in points],
            kernels=[KernelRow(**kernel) for kernel in report["kernels"] if kernel["rank"] == rank],
        )
        for rank, step_ms in ((row["rank"], row["step_ms"]) for row in report["ranks"])
    ]


def _draw(step_ms, states):
    """The second step: an all-reduce in its third quarter, half of it waiting."""
    quarter = round((step_ms or 100.0) * 1e6 / 4)
    borders = (0, quarter, 3 * quarter, 4 * quarter)
    phases = list(zip(("forward", "backward", "optimizer"), borders, borders[1:], strict=False))
    call = DrawnCall("all_reduce", "dp_replicate", 2 * quarter, 3 * quarter, quarter // 2, 81_920)
    return DrawnStep(STEPS[1], 0, 4 * quarter, states, phases, [call])
