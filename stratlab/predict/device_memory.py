"""What a device holds besides what the engines ask for, and the gate. Constants, each with its source."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

GIB = 2**30
DEVICE_GIB = 79.2
"""An H100 of 80 GB: 81,559 MiB by nvidia-smi, of which the driver keeps 480 that no process gets."""
GATE = 0.85
"""Of a device. Above it steps become slow before they fail: of the rows of nanotron's table (H100, 80 GB) with 70.8 GB
and more 16 of 17 are 3 to 12 times slower than the same layout with half the micro-batch."""
RESERVED_PER_ALLOCATED = 1.04
"""What torch's allocator takes from the device for each byte that is asked for: median of 43 published rows of
SimuMax (B200), 1.028 to 1.093. On an H200 with room to spare 1.005 to 1.226, median 1.094, more than it needs."""
CONTEXT_GIB = 1.3
"""CUDA's context, the kernels' code, and NCCL with one rank: 1.28 to 1.31 in seven of eight runs of ours on an H200
(torch 2.11, CUDA 13, driver 580; the eighth, zero2, 1.69). Without NCCL 0.75."""
COMMUNICATOR_GIB = 0.37
"""NCCL's buffers of one group of ranks: 0.34 to 0.39 in the same rows."""
WORKSPACE_GIB = 64 / 1024
"""cuBLAS: 32 MiB on Hopper and Blackwell for a handle and its stream (torch, CUDAContext), one of the thread that
trains, one of autograd's. In the allocator's own count: of 67 runs of one rank on an H100 and an H200 53 are 64
to 106 MiB above what the engines had asked for, 12 more, 2 less (docs/gpu.md)."""


class Verdict(StrEnum):
    """Of a peak and a device."""

    FITS = "fits"
    NEAR_FULL = "too near full"
    NOT = "does not fit"


@dataclass(frozen=True)
class Device:
    """What one rank has, and what is taken of it whatever the model. `groups`: communicators of the rank."""

    gib: float
    groups: int

    @property
    def fixed_gib(self) -> float:
        return CONTEXT_GIB + WORKSPACE_GIB + COMMUNICATOR_GIB * self.groups

    def needs_gib(self, peak_bytes: int) -> float:
        """On the device, for a peak of the engines."""
        return RESERVED_PER_ALLOCATED * peak_bytes / GIB + self.fixed_gib

    def judge(self, peak_bytes: int) -> Verdict:
        needed = self.needs_gib(peak_bytes)
        if needed <= GATE * self.gib:
            return Verdict.FITS
        return Verdict.NEAR_FULL if needed <= self.gib else Verdict.NOT
