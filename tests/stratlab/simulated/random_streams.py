"""A trace without order: kernels of odd lengths on three streams, launched from two threads."""

from __future__ import annotations

import random

from tests.stratlab.simulated.small import ALL_REDUCE, COMM_STREAM, COPY_STREAM, TraceWriter


def build_random_trace(rank: int) -> TraceWriter:
    """Four steps; each rank has its own."""
    trace, draw = TraceWriter(rank), random.Random(rank)
    free = dict.fromkeys((7, COMM_STREAM, COPY_STREAM), 1000.0)
    for step in range(4):
        begin = max(free.values())
        for i in range(60):
            stream = draw.choice([7, 7, 7, COMM_STREAM, COPY_STREAM])
            name = {COMM_STREAM: ALL_REDUCE, COPY_STREAM: "Memcpy DtoH (Device -> Pinned)"}.get(
                stream, f"gemm{i % 5}"
            )
            launch = begin + 20 * i + 1
            start = round(max(free[stream], launch + 5) + draw.choice([0, 0, 7.125]), 3)
            free[stream] = round(start + draw.uniform(0.5, 45), 3)
            trace.kernel(name, launch, start, free[stream], stream, tid=draw.choice([4000, 4001]))
        end = max(begin + 1300, *free.values())
        trace.label(f"## Training Step {step} ##", begin, end)
        trace.label(f"ProfilerStep#{step}", begin, end)
        free = dict.fromkeys(free, end)
    return trace
