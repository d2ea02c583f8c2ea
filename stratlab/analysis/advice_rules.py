"""Advice as data: the rules R1 to R12, with their thresholds. advice.py computes the values.

The thresholds are judgement, not measurement: above them a change has room to pay for itself. Some have sources: a
launch takes 2 to 5 us, which a kernel of 10 us does not hide. The ideal bubble is (p - 1) / (m + p - 1) (Huang et al.
2019, GPipe). PCIe 4.0 x16 moves pinned memory at 20 GB/s and above and pageable memory below 5 GB/s.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from stratlab_spec.strategies import COMPILING, GATHERING

Severity = Literal["high", "medium", "low"]
Values = Mapping[str, Any]
"""Name -> number, text or None (not known)."""
Condition = tuple[str, str, Any]
"""Name of a value, operator, the value to compare with."""

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    "is": operator.eq,
    "is not": operator.ne,
    "in": lambda value, allowed: value in allowed,
}


@dataclass(frozen=True)
class Remedy:
    """A change to try if `when` holds. `settings`: name -> value, both may hold {names of values}."""

    advice: str
    settings: Mapping[str, str] = field(default_factory=dict)
    when: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class AdviceRule:
    """One way in which a rule fires.

    Attributes:
        id: R1 to R12. The first firing entry of an id gives the recommendation; other firing entries add their titles
            and numbers.
        when: all of them hold; an unknown value does not hold.
        title: one sentence, {names of values} in it.
        lead: the value that sorts recommendations of one severity, the largest first; empty = the first condition's
            value. Above HIGH_PCT a medium severity is high.
        `remedies`: the first whose conditions hold is the advice, or else `otherwise`.
        elsewhere: the advice instead for traces of other programs, which do not have our settings.
        wins: the share of the step, %, that the advice can save at most; empty = no time, or unknown.
        evidence: further values to show, in addition to `when`.
        gpu_only: does not apply to a CPU.
        doubtful: lowers the severity of all others by one.
    """

    id: str
    when: tuple[Condition, ...]
    title: str
    lead: str = ""
    wins: str = ""
    severity: Severity = "medium"
    remedies: tuple[Remedy, ...] = ()
    elsewhere: str = ""
    otherwise: str = ""
    evidence: tuple[str, ...] = ()
    gpu_only: bool = False
    doubtful: bool = False


def holds(conditions: tuple[Condition, ...], values: Values) -> bool:
    """Return whether all conditions hold; a condition with an absent or None value does not."""
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
DOUBTS = "R12"  # the rule about the traces, not about the run
HIGH_PCT = 40.0  # a fix may save more than a third of the step

CAN_DOUBLE: Condition = ("double_micro_batch", ">", 0)
CAN_HALVE: Condition = ("half_micro_batch", ">", 0)
LARGER_MICRO_BATCH = {"run.config.micro_batch_size": "{double_micro_batch}"}
SMALLER_MICRO_BATCH = {"run.config.micro_batch_size": "{half_micro_batch}"}
NO_OFFLOAD = {"run.config.offload": "none"}
ELSEWHERE: Condition = ("foreign", "is", True)
"""Traces that this lab did not make: advice is in words of PyTorch and DeepSpeed."""
OFFLOADS: Condition = ("offload", "in", ("optimizer", "all"))
COMPILES: tuple[Condition, ...] = (("compile", "is", False), ("strategy", "in", COMPILING))
HAS_ROOM = ("memory_pct", "<", ROOM_PCT)
GPU_WAITS = "The GPU waits {launching_pct:.0f} % of the step for the host or for launches, most of it "
STREAMS = ("data_residence", "is", "stream")

SHORT_GAPS = AdviceRule(
    "R3",
    (("launching_pct", ">", HOST_WAIT_PCT), ("gap_kind", "is", "short")),
    GPU_WAITS + "in many short gaps",
    wins="launching_pct",
    remedies=(
        Remedy(
            "torch.compile fuses kernels block by block, so that the host launches fewer. Its first steps compile, "
            "which takes a compiler and Python's headers; the project's own image for GPUs has both.",
            {"run.config.compile": "true"},
            COMPILES,
        ),
        Remedy(
            "Larger micro-batches make every kernel longer for the same launch, if memory allows.",
            LARGER_MICRO_BATCH,
            (CAN_DOUBLE,),
        ),
    ),
    elsewhere="torch.compile fuses kernels, so that the host launches fewer; its mode reduce-overhead replays them as "
    "CUDA graphs. Larger micro-batches make every kernel longer for the same launch. What reads a number from the GPU "
    "in every step (.item(), .cpu(), a printed loss) makes the host wait.",
    otherwise="Take more samples per micro-batch (a larger global batch), or use CUDA graphs (not a trainer setting).",
    evidence=("kernels_per_step", "kernel_us_p50", "short_gap_pct", "longest_gap_ms"),
    gpu_only=True,
)
LONG_GAPS = {
    "first": (
        "before the first event of a step",
        "Look at what the host does before it launches anything: preparing samples, tokenizing, moving lists to "
        "tensors. Do it ahead, in workers of the DataLoader, or once. Fusing kernels does not help.",
    ),
    "label": (
        "in long gaps under {gap_label}",
        "Look at what the host does under {gap_label}: Python that computes, a wait for another process, a number read "
        "from the GPU. Fusing kernels does not help.",
    ),
    "long": (
        "in long gaps, the longest of {longest_gap_ms:.1f} ms",
        "Look for the long gaps in the merged trace, and at what the host does in them: compiling at first use, "
        "allocating, writing files, a number read from the GPU. Fusing kernels does not help.",
    ),
}
"""Kind of the gaps -> their meaning, and the advice."""
LOWERED = "Read the other recommendations as hints: their severity is lowered by one."

RULES = (
    # ranks together: communication, waiting for each other, the pipeline
    AdviceRule(
        "R1",
        (("transfer_pct", ">", EXPOSED_PCT), ("comm_overlap_pct", "<", HIDDEN_PCT)),
        "{transfer_pct:.0f} % of the step ({transfer_ms:.2f} ms) is communication that no compute hides{mostly}",
        wins="transfer_pct",
        remedies=(
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
        ),
        elsewhere="More samples per step hide more communication, at the same bytes: larger micro-batches, or several "
        "of them before gradients are reduced (no_sync). Larger buckets (DDP's bucket_cap_mb, DeepSpeed's "
        "reduce_bucket_size) use the links better, smaller ones start earlier. Under fully_shard "
        "set_modules_to_forward_prefetch gathers further ahead, and reshard_after_forward=False gathers nothing "
        "again for the backward pass.",
        otherwise="Take more samples per step, which hide more communication at the same bytes (a larger global batch "
        "is another training). Larger buckets (run.config.reduce_bucket_mib of ddp and DeepSpeed) use the links "
        "better, smaller ones start earlier; run.config.prefetch_blocks gathers further ahead.",
        evidence=("comm_pct", "transfer_ms"),
    ),
    AdviceRule(
        "R2",
        (("transfer_pct", ">", EXPOSED_BETWEEN_NODES_PCT), ("nodes", ">", 1), ("strategy", "is", "zero3")),
        "zero3 gathers parameters across {nodes:.0f} nodes, {transfer_pct:.0f} % of the step waits for it",
        wins="transfer_pct",
        severity="high",
        remedies=(
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
        ),
        otherwise="With one process per node hpz has no effect: use more GPUs per node, or zero2 if it fits.",
    ),
    AdviceRule(
        "R5",
        (("straggler_pct", ">", STRAGGLER_PCT),),
        "{straggler_pct:.0f} % of the step is waiting for the last rank{late}",
        wins="straggler_pct",
        remedies=(
            Remedy(
                "Try fewer processes per node, or larger micro-batches. The ranks take turns at being last, so no host "
                "is the reason: uneven samples or batches, or ranks that share cores or a link.",
                when=(("late_alike", ">", 0),),
            ),
            Remedy(
                "Look at the late rank's host: temperature and clocks of its GPU (nvidia-smi -q), its CPU and network; "
                "and whether its samples take longer than the others'.",
                when=(ELSEWHERE,),
            ),
        ),
        otherwise="Look at the late rank's host: temperature and clocks of its GPU "
        "(detail/system/rank*/gpu_temperature_c), its CPU and network; and whether its samples take longer than the "
        "others'.",
        evidence=("late_rank", "late_calls", "compute_imbalance"),
    ),
    AdviceRule(
        "R5",
        (("compute_imbalance", ">", IMBALANCE),),
        "The slowest rank{slowest} computes {compute_imbalance:.2f} times as long as the mean of all ranks",
        lead="imbalance_pct",
        wins="imbalance_of_step_pct",
        otherwise="Compare the slowest rank's work with the others' (samples, sequence lengths, layers), and its "
        "hardware: temperature, clocks, a busy host. All others wait for it in the next collective.",
        evidence=("slowest_rank",),
    ),
    AdviceRule(
        "R6",
        (("bubble_over_ideal", ">", BUBBLE_OVER_IDEAL),),
        "The pipeline's bubble is {bubble_pct:.0f} % of the step, {bubble_over_ideal:.1f} times the "
        "{bubble_ideal_pct:.0f} % of equal stages",
        wins="bubble_excess_pct",
        lead="bubble_pct",
        otherwise="Balance the layers of the stages first: stages take unequal times or wait for their links.",
        evidence=("bubble_ideal_pct",),
    ),
    AdviceRule(
        "R6",
        (("bubble_pct", ">", BUBBLE_PCT),),
        "The pipeline's bubble is {bubble_pct:.0f} % of the step",
        wins="bubble_pct",
        remedies=(
            Remedy(
                "Smaller micro-batches are more of them, and the bubble shrinks with their number; an interleaved "
                "schedule shrinks it too.",
                SMALLER_MICRO_BATCH,
                (CAN_HALVE,),
            ),
        ),
        otherwise="More micro-batches per step (a larger global batch), or an interleaved schedule, shrink the bubble.",
        evidence=("bubble_ideal_pct",),
    ),
    # one rank: its host, its data, its copies, its optimizer
    SHORT_GAPS,
    *(
        replace(
            SHORT_GAPS,
            when=(SHORT_GAPS.when[0], ("gap_kind", "is", kind)),
            title=GPU_WAITS + where,
            remedies=(),
            elsewhere="",
            otherwise=advice,
        )
        for kind, (where, advice) in LONG_GAPS.items()
    ),
    replace(
        SHORT_GAPS,
        when=(
            ("short_kernel_pct", ">", SHORT_KERNELS_PCT),
            ("kernels_per_step", ">", MANY_KERNELS),
            ("gap_kind", "is", "short"),
        ),
        title="{short_kernel_pct:.0f} % of {kernels_per_step:.0f} kernels per step are shorter than 10 us",
        lead="launching_pct",
        severity="low",
        evidence=("kernel_us_p50",),
    ),
    AdviceRule(
        "R4",
        (("data_pct", ">", DATA_PCT),),
        "{data_pct:.0f} % of the step is spent on getting the next batch",
        wins="data_pct",
        remedies=(
            Remedy(
                "Images are decoded batch by batch. Move them to the device once, if they fit.",
                {"run.config.data_residence": "device"},
                (STREAMS,),
            ),
        ),
        elsewhere="Let the DataLoader work ahead: num_workers, prefetch_factor, persistent_workers and "
        "pin_memory=True; give it more CPU, or prepare the samples once instead of in every epoch.",
        otherwise="Give the pod more CPU (run.resources), or a smaller image_size or lighter augment. The trainer's "
        "loader has no number of workers to set; it pins its memory already.",
        evidence=("data_ms",),
    ),
    AdviceRule(
        "R9",
        (("h2d_gbps", "<", SLOW_COPY_GBPS), ("copy_exposed_pct", ">", COPY_PCT)),
        "Copies to the GPU run at {h2d_gbps:.1f} GB/s and take {copy_exposed_pct:.0f} % of the step unhidden",
        lead="copy_exposed_pct",
        wins="copy_exposed_pct",
        remedies=(
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
        ),
        otherwise="Pin the memory and copy without blocking (non_blocking): pageable memory has such a rate.",
        gpu_only=True,
    ),
    AdviceRule(
        "R10",
        (("optimizer_pct", ">", OPTIMIZER_PCT),),
        "The optimizer phase takes {optimizer_pct:.0f} % of the step ({optimizer_ms:.2f} ms)",
        wins="optimizer_pct",
        remedies=(
            Remedy("The offloaded update runs on the host: keep it on the device.", NO_OFFLOAD, (OFFLOADS,)),
            Remedy(
                "Every rank updates all parameters; with zero1 each of {world_size:.0f} updates its share. The update "
                "is fused already.",
                {"run.config.strategy": "zero1"},
                (("strategy", "is", "ddp"), ("world_size", ">", 1)),
            ),
        ),
        elsewhere="With fused=True the optimizer updates all parameters in few kernels; where every rank updates all "
        "of them, ZeroRedundancyOptimizer, fully_shard or ZeRO let each update its share. More samples per step make "
        "it rarer; that is another training.",
        otherwise="More samples per step (a larger global batch) make it rarer; that is another training. The update "
        "is fused and, where the strategy shards, shared already.",
    ),
    # its memory and its kernels
    AdviceRule(
        "R7",
        (("memory_pct", ">", MEMORY_FULL_PCT),),
        "Memory is nearly full: the peak is {memory_pct:.0f} % of the device's {device_memory_gib:.0f} GiB",
        severity="high",
        remedies=(
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
        ),
        elsewhere="Recompute activations (torch.utils.checkpoint), take smaller micro-batches and more of them, "
        "compute in bf16 (torch.autocast), shard the state (fully_shard, ZeRO), or use more GPUs.",
        otherwise="Keep the state in host memory (run.config.offload) where the strategy can, or use more GPUs.",
        evidence=("peak_allocated_gib",),
        gpu_only=True,
    ),
    AdviceRule(
        "R7",
        (("memory_pct", "<", MEMORY_FREE_PCT),),
        "Over half of the memory is free: the peak is {memory_pct:.0f} % of the device's {device_memory_gib:.0f} GiB",
        lead="free_pct",
        severity="low",
        remedies=(
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
        ),
        elsewhere="There is room for larger micro-batches, for recomputing fewer activations, or for sharding less, "
        "which communicates less.",
        otherwise="There is room for a larger model or a larger global batch.",
        evidence=("peak_allocated_gib",),
        gpu_only=True,
    ),
    AdviceRule(
        "R8",
        (("held_back_pct", ">", HELD_BACK_PCT),),
        "{held_back_pct:.0f} % of the memory that the allocator reserved was never in use at once",
        severity="low",
        remedies=(
            Remedy(
                "Sizes of tensors change from step to step: let segments grow, and keep shapes the same.",
                {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
            ),
        ),
        evidence=("peak_allocated_gib", "peak_reserved_gib"),
        gpu_only=True,
    ),
    AdviceRule(
        "R8",
        (("allocations_per_step", ">", MANY_ALLOCATIONS),),
        "{allocations_per_step:.0f} allocations per step",
        lead="held_back_pct",
        severity="low",
        remedies=(
            Remedy(
                "torch.compile fuses operators: fewer, larger ones.", {"run.config.compile": "true"}, COMPILES
            ),
        ),
        otherwise="Larger micro-batches and fused operators allocate less often.",
        gpu_only=True,
    ),
    AdviceRule(
        "R11",
        (("top_kernel_pct", ">", TOP_KERNEL_PCT),),
        "One kernel takes {top_kernel_pct:.0f} % of the compute time: {top_kernel}",
        severity="low",
        remedies=(
            Remedy(
                "The kernel is attention written out: scaled_dot_product_attention with a flash kernel reads memory "
                "once.",
                when=(("top_kernel_kind", "is", "attention"),),
            ),
            Remedy(
                "The kernel is a matrix product: this is where the time should go; in fp32, bf16 or TF32 runs it on "
                "the tensor cores.",
                when=(ELSEWHERE, ("top_kernel_kind", "is", "gemm")),
            ),
            Remedy(
                "The kernel works element by element: torch.compile fuses such kernels.",
                when=(ELSEWHERE, ("top_kernel_kind", "is", "elementwise")),
            ),
            Remedy(
                "The kernel is a matrix product in fp32: bf16 runs it on the tensor cores.",
                {"run.config.precision": "bf16"},
                (("top_kernel_kind", "is", "gemm"), ("precision", "is", "fp32")),
            ),
            Remedy(
                "The kernel is a matrix product: this is where the time should go.",
                when=(("top_kernel_kind", "is", "gemm"),),
            ),
            Remedy(
                "The kernel works element by element: torch.compile fuses such kernels.",
                {"run.config.compile": "true"},
                (("top_kernel_kind", "is", "elementwise"), *COMPILES),
            ),
        ),
        otherwise="Look at its launches in the merged trace: what calls it, and with which shapes.",
        gpu_only=True,
    ),
    # how reliable the numbers are
    AdviceRule(
        "R12",
        (("unrecorded_launches", ">", 0),),
        "The device's activity was not recorded, {unrecorded_launches:.0f} launches and no kernels: this is host "
        "operator time",
        severity="high",
        otherwise=(
            "Record it: torch.profiler with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] (XPU, MTIA, "
            "PrivateUse1), while no other profiler holds the device. " + LOWERED
        ),
        evidence=("traced_steps", "traced_ranks"),
        doubtful=True,
    ),
    AdviceRule(
        "R12",
        (("source", "is", "cpu"), ("unrecorded_launches", "<", 1)),
        "These are traces of a CPU: host operator time, which says nothing about GPUs",
        otherwise="Record on the GPUs in question. " + LOWERED,
        evidence=("traced_steps", "traced_ranks"),
        doubtful=True,
    ),
    AdviceRule(
        "R12",
        (("missing_ranks", ">", 0),),
        "{missing_ranks:.0f} of {world_size:.0f} ranks have no usable trace",
        otherwise=(
            "The slowest rank may be among them; the section on quality says why they are missing. " + LOWERED
        ),
        doubtful=True,
    ),
    AdviceRule(
        "R12",
        (("traced_steps", "<", 2),),
        "Only {traced_steps:.0f} step was recorded",
        remedies=(Remedy("Record three or more. " + LOWERED, {"run.config.profile_steps": "3"}),),
        elsewhere=(
            "Record three or more, active=3 of torch.profiler.schedule, with a call of step() after each. "
            + LOWERED
        ),
        doubtful=True,
    ),
    AdviceRule(
        "R12",
        (("slowdown", ">", SLOWDOWN),),
        "A recorded step is {slowdown:.2f} times as long as one that is not recorded",
        severity="low",
        remedies=(
            Remedy(
                "The profiler itself costs host time, so that waiting for the host is overstated. Allocations need "
                "not be recorded.",
                {"run.config.profile_memory": "false"},
                (("profile_memory", "is", True),),
            ),
        ),
        otherwise="The profiler itself costs host time, so that waiting for the host is overstated.",
        evidence=("step_ms", "step_time_ms_p50"),
    ),
)
