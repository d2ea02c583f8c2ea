"""What events of torch.profiler are called: the trainer's labels, collectives, launches.

The trainer counts its exposed communication by these rules, the analysis divides the same time with them.
"""

from __future__ import annotations

import re

STEP_LABEL = "## Training Step {step} ##"
LABELS = {
    "data": "## Data Loading ##",
    "forward": "## Forward Pass ##",
    "backward": "## Backward Pass ##",
    "optimizer": "## Optimizer Step ##",
}
"""Phase -> the label that the trainer gives it."""
STEP = re.compile(r"^## ?Training Step (\d{1,18}) ?##$", re.IGNORECASE)

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
# Not computation: entering a collective, and autograd's wrappers, whose own time is hooks that wait for one
# (FSDP waits inside RegisterPostBackwardFunctionBackward).
NO_COMPUTE_OP = re.compile(
    r"^(c10d::|_c10d|record_param_comms|autograd::engine|torch::autograd::)|Backward\d*$"
    # of old writers: torch 2.1's operators of collectives, and labels, which writers of 2021 call operators
    r"|^(## |ProfilerStep#|c10d_functional::|\[pl\]|enumerate\(|Optimizer\.)"
)

# Labels, operators and Python's stack, which are most of a trace and launch nothing themselves. Every other host event
# may be a launch: `cuda_runtime`, `hip_driver`, `xpu_runtime`, `privateuse1_runtime`, and those of devices to come.
OPERATOR_CATEGORIES = ("cpu_op", "Operator")
UNLINKED_CATEGORIES = (
    *OPERATOR_CATEGORIES,
    *("python_function", "user_annotation", "gpu_user_annotation", "cpu_instant_event"),
)
LAUNCH_CATEGORY = re.compile(r"_(runtime|driver)$|^Runtime$")
