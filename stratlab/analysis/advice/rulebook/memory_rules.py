"""The rules about one rank: its memory and its kernels."""

from __future__ import annotations

from stratlab.analysis.advice.rulebook.rule import Remedy, Rule
from stratlab.analysis.advice.rulebook.thresholds import (
    CAN_DOUBLE,
    CAN_HALVE,
    COMPILES,
    ELSEWHERE,
    HELD_BACK_PCT,
    LARGER_MICRO_BATCH,
    MANY_ALLOCATIONS,
    MEMORY_FREE_PCT,
    MEMORY_FULL_PCT,
    NO_OFFLOAD,
    OFFLOADS,
    SMALLER_MICRO_BATCH,
    TOP_KERNEL_PCT,
)

MEMORY = (
    Rule(
        "R7",
        (("memory_pct", ">", MEMORY_FULL_PCT),),
        "Memory is nearly full: the peak is {memory_pct:.0f} % of the device's {device_memory_gib:.0f} GiB",
        "memory_pct",
        "high",
        (
            Remedy(
                "Recompute activations (torch.utils.checkpoint), take smaller micro-batches and more of them, compute "
                "in bf16 (torch.autocast), shard the state (fully_shard, ZeRO), or use more GPUs.",
                when=(ELSEWHERE,),
            ),
            Remedy(
                "Recompute what is cheap, norms and activation functions: little more time for about half of the "
                "activations.",
                {"run.config.activation_checkpointing": "selective"},
                (("activation_checkpointing", "is", "none"),),
            ),
            Remedy(
                "Recompute activations block by block: about a third more time for much less memory.",
                {"run.config.activation_checkpointing": "blocks"},
                (("activation_checkpointing", "is not", "blocks"),),
            ),
            Remedy(
                "{next_strategy} holds less state per rank.",
                {"run.config.strategy": "{next_strategy}"},
                (("next_strategy", "is not", ""),),
            ),
            Remedy("Smaller micro-batches hold fewer activations.", SMALLER_MICRO_BATCH, (CAN_HALVE,)),
            Remedy(
                "Keep the state in host memory (run.config.offload) where the strategy can, or use more GPUs."
            ),
        ),
        evidence=("peak_allocated_gib",),
        gpu_only=True,
    ),
    Rule(
        "R7",
        (("memory_pct", "<", MEMORY_FREE_PCT),),
        "Memory is half empty: the peak is {memory_pct:.0f} % of the device's {device_memory_gib:.0f} GiB",
        "free_pct",
        "low",
        (
            Remedy(
                "There is room for larger micro-batches, for recomputing fewer activations, or for sharding less, "
                "which communicates less.",
                when=(ELSEWHERE,),
            ),
            Remedy("There is room for the state on the device.", NO_OFFLOAD, (OFFLOADS,)),
            Remedy("There is room for larger micro-batches.", LARGER_MICRO_BATCH, (CAN_DOUBLE,)),
            Remedy(
                "There is room for activations: recompute nothing.",
                {"run.config.activation_checkpointing": "none"},
                (("activation_checkpointing", "is not", "none"),),
            ),
            Remedy(
                "{previous_strategy} holds more state per rank and communicates less.",
                {"run.config.strategy": "{previous_strategy}"},
                (("previous_strategy", "is not", ""),),
            ),
            Remedy("There is room for a larger model or a larger global batch."),
        ),
        evidence=("peak_allocated_gib",),
        gpu_only=True,
    ),
    Rule(
        "R8",
        (("held_back_pct", ">", HELD_BACK_PCT),),
        "{held_back_pct:.0f} % of the memory that the allocator reserved was never in use at once",
        "held_back_pct",
        "low",
        (
            Remedy(
                "Sizes of tensors change from step to step: let segments grow, and keep shapes the same.",
                {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
            ),
        ),
        evidence=("peak_allocated_gib", "peak_reserved_gib"),
        gpu_only=True,
    ),
    Rule(
        "R8",
        (("allocations_per_step", ">", MANY_ALLOCATIONS),),
        "{allocations_per_step:.0f} allocations per step",
        "held_back_pct",
        "low",
        (
            Remedy(
                "torch.compile fuses operators: fewer, larger ones.", {"run.config.compile": "true"}, COMPILES
            ),
            Remedy("Larger micro-batches and fused operators allocate less often."),
        ),
        gpu_only=True,
    ),
    Rule(
        "R11",
        (("top_kernel_pct", ">", TOP_KERNEL_PCT),),
        "One kernel takes {top_kernel_pct:.0f} % of the compute time: {top_kernel}",
        "top_kernel_pct",
        "low",
        (
            Remedy(
                "It is attention written out: scaled_dot_product_attention with a flash kernel reads memory once.",
                when=(("top_kernel_kind", "is", "attention"),),
            ),
            Remedy(
                "It is a matrix product: this is where the time should go; in fp32, bf16 or TF32 runs it on the tensor "
                "cores.",
                when=(ELSEWHERE, ("top_kernel_kind", "is", "gemm")),
            ),
            Remedy(
                "It works element by element: torch.compile fuses such kernels.",
                when=(ELSEWHERE, ("top_kernel_kind", "is", "elementwise")),
            ),
            Remedy(
                "It is a matrix product in fp32: bf16 runs it on the tensor cores.",
                {"run.config.precision": "bf16"},
                (("top_kernel_kind", "is", "gemm"), ("precision", "is", "fp32")),
            ),
            Remedy(
                "It is a matrix product: this is where the time should go.",
                when=(("top_kernel_kind", "is", "gemm"),),
            ),
            Remedy(
                "It works element by element: torch.compile fuses such kernels.",
                {"run.config.compile": "true"},
                (("top_kernel_kind", "is", "elementwise"), *COMPILES),
            ),
            Remedy("Look at its launches in the merged trace: what calls it, and with which shapes."),
        ),
        gpu_only=True,
    ),
)
