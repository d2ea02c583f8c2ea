"""The rules R1 to R12 as data.

What a rule is: conditions on named values, and what to do when they hold. The rules themselves: all_rules.py.

Thresholds of the rules R1 to R12, and the conditions and settings that several of them share.

The thresholds are judgement, not measurement: above them a remedy has room to pay for itself. Sources where there is
one: 2 to 5 us of a launch, which a kernel of 10 us does not hide; (p - 1) / (m + p - 1) as the ideal bubble (Huang et
al. 2019, GPipe); PCIe 4.0 x16, which moves pinned memory at 20 GB/s and above and pageable memory below 5 GB/s.

The rules about ranks together: communication, waiting for each other, the pipeline.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stratlab_spec.strategies import COMPILING, GATHERING

Severity = Literal["high", "medium", "low"]
Values = Mapping[str, Any]
"""Name -> number, text or None (not known)."""
Condition = tuple[str, str, Any]
"""Name of a value, operator, what it is compared with."""

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    "is": operator.eq,
    "is not": operator.ne,
    "in": lambda value, allowed: value in allowed,
}


@dataclass(frozen=True)
class Remedy:
    """What to change where `when` holds. `settings`: name -> value, both may hold {names of values}."""

    advice: str
    settings: Mapping[str, str] = field(default_factory=dict)
    when: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One way in which a rule fires.

    Args:
        id: R1 to R12. Of the entries with one id the first that fires gives the recommendation, the titles and
            numbers of the others that fire are added to it.
        when: all of them hold; a value that is not known holds nowhere.
        title: one sentence, {names of values} in it.
        lead: the value by which recommendations of one severity are sorted, the largest first.
        high_above: of `lead`; above it the severity is high. None = never.
        remedies: the first whose conditions hold is the advice.
        evidence: values that are shown, besides those of `when`.
        gpu_only: says nothing about a CPU.
        doubtful: lowers the severity of all others by one.
    """

    id: str
    when: tuple[Condition, ...]
    title: str
    lead: str
    severity: Severity
    remedies: tuple[Remedy, ...]
    high_above: float | None = None
    evidence: tuple[str, ...] = ()
    gpu_only: bool = False
    doubtful: bool = False


def holds(conditions: tuple[Condition, ...], values: Values) -> bool:
    """Whether all conditions hold; with a value that is None or absent none does."""
    return all(
        values.get(name) is not None and OPERATORS[sign](values[name], other)
        for name, sign, other in conditions
    )


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


HAS_ROOM = ("memory_pct", "<", ROOM_PCT)

COMMUNICATION = (
    Rule(
        "R1",
        (("transfer_pct", ">", EXPOSED_PCT), ("comm_overlap_pct", "<", HIDDEN_PCT)),
        "{transfer_pct:.0f} % of the step ({transfer_ms:.2f} ms) is communication that no compute hides{mostly}",
        "transfer_pct",
        "medium",
        (
            Remedy(
                "Parameters are gathered for every micro-batch: larger ones gather less often, if memory allows.",
                LARGER_MICRO_BATCH,
                (("strategy", "in", GATHERING), CAN_DOUBLE),
            ),
            Remedy(
                "hsdp keeps the gathers inside a node, where links are fast; it holds one copy of the model per node.",
                {"run.config.strategy": "hsdp"},
                (("strategy", "is", "fsdp"), ("nodes", ">", 1), ("processes_per_node", ">", 1)),
            ),
            Remedy(
                "bf16 gathers the weights of products in bf16, half the bytes, and multiplies in bf16.",
                {"run.config.precision": "bf16"},
                (("strategy", "in", GATHERING), ("precision", "is", "fp32")),
            ),
            Remedy(
                "zero2 reduces gradients after every micro-batch, zero1 once per step.",
                {"run.config.strategy": "zero1"},
                (("strategy", "is", "zero2"), ("grad_accum_steps", ">", 1)),
            ),
            Remedy(
                "ddp gathers no weights after the update, and half of the device's memory is free.",
                {"run.config.strategy": "ddp"},
                (("strategy", "in", ("zero1", "zero2")), ("memory_pct", "<", MEMORY_FREE_PCT)),
            ),
            Remedy(
                "More samples per step hide more of it, at the same bytes: larger micro-batches, or several of them "
                "before gradients are reduced (no_sync). Larger buckets (DDP's bucket_cap_mb, DeepSpeed's "
                "reduce_bucket_size) use the links better, smaller ones start earlier. Under fully_shard "
                "set_modules_to_forward_prefetch gathers further ahead, and reshard_after_forward=False gathers "
                "nothing again for the backward pass.",
                when=(ELSEWHERE,),
            ),
            Remedy(
                "More samples per step hide more of it, at the same bytes (a larger global batch is another training). "
                "Larger buckets (run.config.reduce_bucket_mib of ddp and DeepSpeed) use the links better, smaller ones "
                "start earlier; run.config.prefetch_blocks gathers further ahead.",
            ),
        ),
        HIGH_PCT,
        ("comm_pct", "transfer_ms"),
    ),
    Rule(
        "R2",
        (
            ("transfer_pct", ">", EXPOSED_BETWEEN_NODES_PCT),
            ("nodes", ">", 1),
            ("strategy", "is", "zero3"),
        ),
        "zero3 gathers parameters across {nodes:.0f} nodes, {transfer_pct:.0f} % of the step waits for it",
        "transfer_pct",
        "high",
        (
            Remedy(
                "zero2 keeps whole parameters on every rank and gathers nothing in forward and backward; the peak of "
                "{memory_pct:.0f} % of the device's memory leaves room to try.",
                {"run.config.strategy": "zero2"},
                (HAS_ROOM,),
            ),
            Remedy(
                "ZeRO++ with hpz keeps a second copy of the parameters per node, so that the backward pass gathers "
                "inside the node. qgz shrinks the gradients' bytes; it changes the numbers.",
                {"run.config.strategy": "zeropp", "run.config.zeropp": "hpz"},
                (("processes_per_node", ">", 1),),
            ),
            Remedy(
                "With one process per node hpz has no effect: use more GPUs per node, or zero2 if it fits."
            ),
        ),
    ),
    Rule(
        "R5",
        (("straggler_pct", ">", STRAGGLER_PCT),),
        "{straggler_pct:.0f} % of the step is waiting for the last rank{late}",
        "straggler_pct",
        "medium",
        (
            Remedy(
                "The ranks take turns at being last, so no host is the reason: uneven samples or batches, or ranks "
                "that share cores or a link. Fewer processes per node, or larger micro-batches, show which.",
                when=(("late_alike", ">", 0),),
            ),
            Remedy(
                "Look at that rank's host: temperature and clocks of its GPU (nvidia-smi -q), its CPU and network; and "
                "whether its samples take longer than the others'.",
                when=(ELSEWHERE,),
            ),
            Remedy(
                "Look at that rank's host: temperature and clocks of its GPU (system/rank*/gpu_temperature_c), its CPU "
                "and network; and whether its samples take longer than the others'.",
            ),
        ),
        HIGH_PCT,
        ("late_rank", "late_calls", "compute_imbalance"),
    ),
    Rule(
        "R5",
        (("compute_imbalance", ">", IMBALANCE),),
        "The slowest rank{slowest} computes {compute_imbalance:.2f} times as long as the mean of all ranks",
        "imbalance_pct",
        "medium",
        (
            Remedy(
                "All others wait for it in the next collective. Compare its work with the others' (samples, sequence "
                "lengths, layers), and its hardware: temperature, clocks, a busy host.",
            ),
        ),
        HIGH_PCT,
        ("slowest_rank",),
    ),
    Rule(
        "R6",
        (("bubble_over_ideal", ">", BUBBLE_OVER_IDEAL),),
        "The pipeline's bubble is {bubble_pct:.0f} % of the step, {bubble_over_ideal:.1f} times its ideal of "
        "{bubble_ideal_pct:.0f} %",
        "bubble_pct",
        "medium",
        (
            Remedy(
                "Stages take unequal times or wait for their links: balance the layers of the stages first."
            ),
        ),
        HIGH_PCT,
        ("bubble_ideal_pct",),
    ),
    Rule(
        "R6",
        (("bubble_pct", ">", BUBBLE_PCT),),
        "The pipeline's bubble is {bubble_pct:.0f} % of the step",
        "bubble_pct",
        "medium",
        (
            Remedy(
                "Smaller micro-batches are more of them, and the bubble shrinks with their number; an interleaved "
                "schedule shrinks it too.",
                SMALLER_MICRO_BATCH,
                (CAN_HALVE,),
            ),
            Remedy(
                "More micro-batches per step (a larger global batch), or an interleaved schedule, shrink it."
            ),
        ),
        HIGH_PCT,
        ("bubble_ideal_pct",),
    ),
)
