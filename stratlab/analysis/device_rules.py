"""The rules about one rank: its host, its data, its copies, its optimizer.

The rules about one rank: its memory and its kernels.
"""

from __future__ import annotations

from stratlab.analysis.group_rules import (
    CAN_DOUBLE,
    CAN_HALVE,
    COMPILES,
    COPY_PCT,
    DATA_PCT,
    ELSEWHERE,
    HELD_BACK_PCT,
    HIGH_PCT,
    HOST_WAIT_PCT,
    LARGER_MICRO_BATCH,
    MANY_ALLOCATIONS,
    MANY_KERNELS,
    MEMORY_FREE_PCT,
    MEMORY_FULL_PCT,
    NO_OFFLOAD,
    OFFLOADS,
    OPTIMIZER_PCT,
    SHORT_KERNELS_PCT,
    SLOW_COPY_GBPS,
    SMALLER_MICRO_BATCH,
    TOP_KERNEL_PCT,
    Remedy,
    Rule,
)

STREAMS = ("data_residence", "is", "stream")
LAUNCHES = (
    Remedy(
        "torch.compile fuses kernels, so that the host launches fewer; its mode reduce-overhead replays them as CUDA "
        "graphs. Larger micro-batches make every kernel longer for the same launch. What reads a number from the GPU "
        "in every step (.item(), .cpu(), a printed loss) makes the host wait.",
        when=(ELSEWHERE,),
    ),
    Remedy(
        "torch.compile fuses kernels block by block, so that the host launches fewer. Its first steps compile, which "
        "takes a compiler and Python's headers; the project's own image for GPUs has both.",
        {"run.config.compile": "true"},
        COMPILES,
    ),
    Remedy(
        "Larger micro-batches make every kernel longer for the same launch, if memory allows.",
        LARGER_MICRO_BATCH,
        (CAN_DOUBLE,),
    ),
    Remedy(
        "More samples per micro-batch (a larger global batch), or CUDA graphs; the latter is no setting of the trainer."
    ),
)


def _waits(kind: str, title: str, remedies: tuple[Remedy, ...]) -> Rule:
    """What to do about a GPU that waits for its host depends on the gaps in which it does."""
    return Rule(
        "R3",
        (("launching_pct", ">", HOST_WAIT_PCT), ("gap_kind", "is", kind)),
        title,
        "launching_pct",
        "medium",
        remedies,
        HIGH_PCT,
        ("kernels_per_step", "kernel_us_p50", "short_gap_pct", "longest_gap_ms"),
        gpu_only=True,
    )


HOST = (
    _waits(
        "short",
        "The GPU waits {launching_pct:.0f} % of the step for the host or for launches, most of it in many short gaps",
        LAUNCHES,
    ),
    _waits(
        "first",
        "The GPU waits {launching_pct:.0f} % of the step for the host or for launches, most of it before the first "
        "event of a step",
        (
            Remedy(
                "Look at what the host does there before it launches anything: preparing samples, tokenizing, moving "
                "lists to tensors. Do it ahead, in workers of the DataLoader, or once. Fusing kernels does not help."
            ),
        ),
    ),
    _waits(
        "label",
        "The GPU waits {launching_pct:.0f} % of the step for the host or for launches, most of it in long "
        "gaps under {gap_label}",
        (
            Remedy(
                "Look at what the host does under that label: Python that computes, a wait for another process, a "
                "number read from the GPU. Fusing kernels does not help."
            ),
        ),
    ),
    _waits(
        "long",
        "The GPU waits {launching_pct:.0f} % of the step for the host or for launches, most of it in long "
        "gaps, the longest of {longest_gap_ms:.1f} ms",
        (
            Remedy(
                "Look for these gaps in the merged trace, and at what the host does in them: compiling at first use, "
                "allocating, writing files, a number read from the GPU. Fusing kernels does not help."
            ),
        ),
    ),
    Rule(
        "R3",
        (
            ("short_kernel_pct", ">", SHORT_KERNELS_PCT),
            ("kernels_per_step", ">", MANY_KERNELS),
            ("gap_kind", "is", "short"),
        ),
        "{short_kernel_pct:.0f} % of {kernels_per_step:.0f} kernels per step are shorter than 10 us",
        "launching_pct",
        "low",
        LAUNCHES,
        evidence=("kernel_us_p50",),
        gpu_only=True,
    ),
    Rule(
        "R4",
        (("data_pct", ">", DATA_PCT),),
        "{data_pct:.0f} % of the step is spent on getting the next batch",
        "data_pct",
        "medium",
        (
            Remedy(
                "Let the DataLoader work ahead: num_workers, prefetch_factor, persistent_workers and pin_memory=True; "
                "give it more CPU, or prepare the samples once instead of in every epoch.",
                when=(ELSEWHERE,),
            ),
            Remedy(
                "Images are decoded batch by batch. Move them to the device once, if they fit.",
                {"run.config.data_residence": "device"},
                (STREAMS,),
            ),
            Remedy(
                "Give the pod more CPU (run.resources), or a smaller image_size or lighter augment. The trainer's "
                "loader has no number of workers to set; it pins its memory already.",
            ),
        ),
        HIGH_PCT,
        ("data_ms",),
    ),
    Rule(
        "R9",
        (("h2d_gbps", "<", SLOW_COPY_GBPS), ("copy_exposed_pct", ">", COPY_PCT)),
        "Copies to the GPU run at {h2d_gbps:.1f} GB/s and take {copy_exposed_pct:.0f} % of the step unhidden",
        "copy_exposed_pct",
        "medium",
        (
            Remedy(
                "The offloaded state crosses the bus in every step: keep it on the device.",
                NO_OFFLOAD,
                (OFFLOADS,),
            ),
            Remedy(
                "Batches cross the bus in every step: keep the images on the device, if they fit.",
                {"run.config.data_residence": "device"},
                (STREAMS,),
            ),
            Remedy(
                "Such a rate is that of pageable memory: pin it and copy without blocking (non_blocking)."
            ),
        ),
        HIGH_PCT,
        gpu_only=True,
    ),
    Rule(
        "R10",
        (("optimizer_pct", ">", OPTIMIZER_PCT),),
        "The optimizer phase takes {optimizer_pct:.0f} % of the step ({optimizer_ms:.2f} ms)",
        "optimizer_pct",
        "medium",
        (
            Remedy(
                "With fused=True the optimizer updates all parameters in few kernels; where every rank updates all of "
                "them, ZeroRedundancyOptimizer, fully_shard or ZeRO let each update its share. More samples per step "
                "make it rarer; that is another training.",
                when=(ELSEWHERE,),
            ),
            Remedy("The offloaded update runs on the host: keep it on the device.", NO_OFFLOAD, (OFFLOADS,)),
            Remedy(
                "Every rank updates all parameters; with zero1 each of {world_size:.0f} updates its share. The update "
                "is fused already.",
                {"run.config.strategy": "zero1"},
                (("strategy", "is", "ddp"), ("world_size", ">", 1)),
            ),
            Remedy(
                "The update is fused and, where the strategy shards, shared already. More samples per step (a larger "
                "global batch) make it rarer; that is another training.",
            ),
        ),
        HIGH_PCT,
    ),
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
