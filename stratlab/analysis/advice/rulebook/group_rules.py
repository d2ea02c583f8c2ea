"""The rules about ranks together: communication, waiting for each other, the pipeline."""

from __future__ import annotations

from stratlab.analysis.advice.rulebook.rule import Remedy, Rule
from stratlab.analysis.advice.rulebook.thresholds import (
    BUBBLE_OVER_IDEAL,
    BUBBLE_PCT,
    CAN_DOUBLE,
    CAN_HALVE,
    ELSEWHERE,
    EXPOSED_BETWEEN_NODES_PCT,
    EXPOSED_PCT,
    HIDDEN_PCT,
    HIGH_PCT,
    IMBALANCE,
    LARGER_MICRO_BATCH,
    MEMORY_FREE_PCT,
    ROOM_PCT,
    SMALLER_MICRO_BATCH,
    STRAGGLER_PCT,
)
from stratlab.tables.strategies import GATHERING

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
