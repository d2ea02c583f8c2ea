"""One name per collective, whoever wrote it: NCCL's kernels, their arguments, gloo's labels."""

from __future__ import annotations

import re

# the first that matches; text in lower case without underscores
KNOWN = (
    ("reduce_scatter", re.compile(r"reducescatter")),
    ("all_reduce", re.compile(r"allreduce")),
    ("all_gather", re.compile(r"allgather")),
    ("all_to_all", re.compile(r"alltoall")),
    ("send_recv", re.compile(r"sendrecv|^send|^recv|:send|:recv|irecv|isend")),
    ("broadcast", re.compile(r"broadcast")),
    ("reduce", re.compile(r"reduce")),
    ("gather", re.compile(r"gather")),
    ("scatter", re.compile(r"scatter")),
    ("barrier", re.compile(r"barrier")),
)
POINT_TO_POINT = "send_recv"


def name_collective(text: str) -> str:
    """`all_reduce` for `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`, `gloo:all_reduce`, `allreduce`; what is not
    known keeps its own name without arguments."""
    short = text.partition("(")[0]
    plain = short.lower().replace("_", "")
    return next((name for name, pattern in KNOWN if pattern.search(plain)), short)
