"""Thresholds of the rules R1 to R12, and the conditions and settings that several of them share.

The thresholds are judgement, not measurement: above them a remedy has room to pay for itself. Sources where there is
one: 2 to 5 us of a launch, which a kernel of 10 us does not hide; (p - 1) / (m + p - 1) as the ideal bubble (Huang et
al. 2019, GPipe); PCIe 4.0 x16, which moves pinned memory at 20 GB/s and above and pageable memory below 5 GB/s.
"""

from __future__ import annotations

from stratlab.analysis.advice.rulebook.rule import Condition
from stratlab.tables.strategies import COMPILING

EXPOSED_PCT, HIDDEN_PCT = 20.0, 50.0  # of the step; of the communication
EXPOSED_BETWEEN_NODES_PCT = 30.0
HOST_WAIT_PCT = 15.0
SHORT_KERNELS_PCT, MANY_KERNELS = 50.0, 1000  # of the kernels; per step
DATA_PCT = 10.0
STRAGGLER_PCT, IMBALANCE = 10.0, 1.1  # of the step; largest over mean
BUBBLE_OVER_IDEAL, BUBBLE_PCT = 1.3, 25.0
MEMORY_FULL_PCT, MEMORY_FREE_PCT, ROOM_PCT = 90.0, 50.0, 80.0  # of the device
HELD_BACK_PCT, MANY_ALLOCATIONS = 20.0, 20_000  # of reserved memory; per step
SLOW_COPY_GBPS, COPY_PCT = 5.0, 5.0
OPTIMIZER_PCT = 20.0
TOP_KERNEL_PCT = 40.0  # of the compute kernels' time
SLOWDOWN = 1.25  # recorded step over a step that is not recorded
HIGH_PCT = 40.0  # a remedy may save more than a third of the step

CAN_DOUBLE: Condition = ("double_micro_batch", ">", 0)
CAN_HALVE: Condition = ("half_micro_batch", ">", 0)
LARGER_MICRO_BATCH = {"run.config.micro_batch_size": "{double_micro_batch}"}
SMALLER_MICRO_BATCH = {"run.config.micro_batch_size": "{half_micro_batch}"}
NO_OFFLOAD = {"run.config.offload": "none"}
ELSEWHERE: Condition = ("foreign", "is", True)
"""Traces that this lab did not make: there are no settings of ours, so advice is in words of PyTorch and DeepSpeed."""
OFFLOADS: Condition = ("offload", "in", ("optimizer", "all"))
COMPILES: tuple[Condition, ...] = (
    ("compile", "is", False),
    ("strategy", "in", COMPILING),
)
