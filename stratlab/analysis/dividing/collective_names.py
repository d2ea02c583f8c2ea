"""One name per collective, whoever wrote it: NCCL's kernels, their arguments, the backends' labels; and which events
communicate by their name."""

from __future__ import annotations

import re

# the first that matches; text in lower case without underscores
KNOWN = (
    ("reduce_scatter", re.compile(r"reducescatter")),
    ("all_reduce", re.compile(r"allreduce")),
    ("all_gather", re.compile(r"allgather")),
    ("all_to_all", re.compile(r"alltoall")),
    ("send_recv", re.compile(r"sendrecv|^send|^recv|:send|:recv|irecv|isend|ptop|peertopeer")),
    ("broadcast", re.compile(r"broadcast")),
    ("reduce", re.compile(r"reduce")),
    ("gather", re.compile(r"gather")),
    ("scatter", re.compile(r"scatter")),
    ("barrier", re.compile(r"barrier")),
)
POINT_TO_POINT = "send_recv"

# HTA knows the first three names only: for it the others compute. The libraries of other makers (hcom is Ascend's),
# DeepEP under any of its names (`deep_ep::`, `dpsk::ep::`; its layout and CUB's scans in `cdpsk::ep::` do compute),
# NVSHMEM, vLLM's and torch's own all-reduce, TransformerEngine's userbuffers, and copies to another GPU.
COMMUNICATION_KERNEL = re.compile(
    r"^(nccl|rccl|hccl|hcom_|oneccl)|ncclKernel|msccl|\b(one)?ccl::"
    r"|\b(intranode|internode)(_ll)?::(?!get_dispatch_layout)"
    r"|nvshmem|cross_device_reduce|(one_shot|two_shot)_all_reduce|\bmultimem_|\buserbuffers_"
    r"|^(Memcpy|Copy) ?(PtoP|PeerToPeer)"
)
COMMUNICATION_LABEL = re.compile(r"^(gloo|mpi|ucc|cncl|[a-z]*ccl):")
COMMUNICATION_OPERATOR = re.compile(r"^_?c10d(_functional)?::")  # of torch, around the call of the backend


def name_collective(text: str) -> str:
    """`all_reduce` for `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`, `gloo:all_reduce`, `allreduce`; what is not
    known keeps its own name without arguments."""
    short = text.partition("(")[0]
    return _find(short) or short


def is_collective(text: str) -> bool:
    """Whether the name tells which collective it is; `nccl:coalesced` does not."""
    return _find(text.partition("(")[0]) is not None


def _find(short: str) -> str | None:
    plain = short.lower().replace("_", "")
    return next((name for name, pattern in KNOWN if pattern.search(plain)), None)
