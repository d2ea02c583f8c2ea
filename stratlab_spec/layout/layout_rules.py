"""Requirements of a layout of the strategy nd for model, batch and settings. All rules are checked at once.

Without the check each of them would be a shape error or a hang inside a collective, on GPUs that wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stratlab_spec.models.decoder import VIRTUAL_STAGES
from stratlab_spec.models.decoder_config import size_problems
from stratlab_spec.schedule import count_micro_batches
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.fields import Settings
from stratlab_spec.settings.library_rules import accumulates_sharded, refused_compositions

if TYPE_CHECKING:
    from stratlab_spec.layout.axes import Axes
    from stratlab_spec.models.decoder import DecoderShape

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def broken_layout_rules(
    config: Config, world_size: int, shape: DecoderShape, axes: Axes, sequence_parallel: bool
) -> list[str]:
    """Return one sentence per broken rule."""
    return [
        *size_problems(config),
        *_processes(config, world_size, axes),
        *_family(config, axes, shape),
        *_tensor(config, axes, shape, sequence_parallel),
        *_pipeline(config, axes, shape),
        *_sequence(config, axes, shape, sequence_parallel),
        *_experts(config, axes, shape),
        *_batch(config, axes),
        *_adapters(config, shape),
        *refused_compositions(config, experts=shape.experts > 0, cp=axes.cp, tp=axes.tp),
    ]


def _processes(config: Config, world_size: int, axes: Axes) -> Iterator[str]:
    if axes.world_size == world_size:
        return
    names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    factors = " x ".join(f"{name}={getattr(axes, name)}" for name in names)
    others = axes.world_size // axes.dp_shard
    fix = (
        f"TRAINER_DP_SHARD=0 or {world_size // others} would fit"
        if world_size % others == 0
        else f"the product of those without dp_shard is {others} and must be one of {list_divisors(world_size)}"
    )
    yield f"{factors} makes {axes.world_size} processes, but there are {world_size}; {fix} [SL-nd-processes]"


def _family(config: Config, axes: Axes, shape: DecoderShape) -> Iterator[str]:
    """transformers plans tp for some families only; without the plan heads and experts stay whole."""
    able = {*shape.dims, *(("ep",) if "tp" in shape.dims else ())}
    for axis in ("pp", "cp", "tp", "ep"):
        if getattr(axes, axis) > 1 and axis not in able:
            names = ", ".join([*sorted(able - {"ep"}), "dp_replicate", "dp_shard"])
            yield (
                f"TRAINER_{axis.upper()}={getattr(axes, axis)}: nd splits {config.model_name} (model_type "
                f"{shape.family!r}) over {names} only; expected {axis}=1 [SL-nd-family]"
            )
    if config.lora_rank and not ({"tp", "pp"} & able):
        yield (
            f"TRAINER_LORA_RANK={config.lora_rank}: nd counts no adapters of model_type {shape.family!r}; "
            "take another strategy [SL-nd-family-lora]"
        )


def _tensor(config: Config, axes: Axes, shape: DecoderShape, sequence_parallel: bool) -> Iterator[str]:
    if undivided := list_undivided(shape, axes.tp):
        divisors = list_divisors(math.gcd(*_tensor_sizes(shape).values()))
        yield (
            f"TRAINER_TP={axes.tp}: does not divide {', '.join(undivided)} of {config.model_name}; "
            f"expected one of {divisors} [SL-nd-tp-indivisible]"
        )
    if config.sequence_parallel == "on" and axes.tp == 1:
        yield (
            "TRAINER_SEQUENCE_PARALLEL=on: splits the sequence on the tp axis, and tp is 1; leave it out "
            "[SL-nd-sequence-without-tp]"
        )
    if shape.experts and axes.tp > 1 and not sequence_parallel:
        yield (
            f"TRAINER_SEQUENCE_PARALLEL=off, tp={axes.tp}: the experts of {config.model_name} need distinct tokens "
            "from each process of the tp axis; expected auto or on, or tp=1 [SL-nd-experts-sequence]"
        )


def _tensor_sizes(shape: DecoderShape) -> dict[str, int]:
    """Return the sizes that the tp axis divides; ep distributes whole experts."""
    sizes = {"heads": shape.heads, "kv_heads": shape.kv_heads, "vocab": shape.vocab}
    return sizes if shape.experts else {**sizes, "intermediate": shape.intermediate}


def list_undivided(shape: DecoderShape, tp: int) -> list[str]:
    """Return the sizes that `tp` does not divide, as in `heads=3`."""
    return [f"{name}={size}" for name, size in _tensor_sizes(shape).items() if size % tp]


def _pipeline(config: Config, axes: Axes, shape: DecoderShape) -> Iterator[str]:
    held = VIRTUAL_STAGES[config.pp_schedule]
    if axes.pp > 1:
        yield from pipeline_problems(config)
    if axes.pp > 1 and axes.pp * held > shape.layers:
        each = f" x {held} stages each (TRAINER_PP_SCHEDULE={config.pp_schedule})" if held > 1 else ""
        yield (
            f"TRAINER_PP={axes.pp}{each}: needs {axes.pp * held} layers, {config.model_name} has {shape.layers}; "
            f"expected at most {max(1, shape.layers // held)} [SL-nd-pp-layers]"
        )


def _sequence(config: Config, axes: Axes, shape: DecoderShape, sequence_parallel: bool) -> Iterator[str]:
    parts = axes.cp * (axes.tp if sequence_parallel else 1)
    if config.seq_len % parts:
        near = max(1, round(config.seq_len / parts)) * parts
        split_by = f"cp={axes.cp}" + (f" x tp={axes.tp} (sequence parallel)" if sequence_parallel else "")
        yield (
            f"TRAINER_SEQ_LEN={config.seq_len}: must be a multiple of {split_by}, for example {near} "
            "[SL-nd-seq-len-indivisible]"
        )
    heads = shape.heads // axes.tp
    if axes.cp > 1 and config.cp_method == "ulysses" and shape.heads % axes.tp == 0 and heads % axes.cp:
        yield (
            f"TRAINER_CP={axes.cp}, TRAINER_CP_METHOD=ulysses: does not divide heads/tp={heads} of "
            f"{config.model_name}; expected one of {list_divisors(heads)}, or TRAINER_CP_METHOD=allgather "
            "[SL-nd-cp-heads]"
        )


def _experts(config: Config, axes: Axes, shape: DecoderShape) -> Iterator[str]:
    if not shape.experts:
        if axes.ep > 1:
            yield f"TRAINER_EP={axes.ep}: {config.model_name} has no experts; leave it out [SL-nd-ep-dense]"
        if config.dimensions == 5:
            yield (
                f"TRAINER_DIMENSIONS=5: the fifth dimension is for experts, and {config.model_name} is a dense model; "
                "expected at most 4, or a mixture of experts such as qwen3-30b-a3b [SL-nd-five-dimensions-dense]"
            )
        return
    pool = axes.dp_shard * axes.cp * axes.tp
    if shape.experts % axes.ep or pool % axes.ep:
        undivided = [f"experts={shape.experts}"] if shape.experts % axes.ep else []
        undivided += [f"dp_shard x cp x tp = {pool}"] if pool % axes.ep else []
        yield (
            f"TRAINER_EP={axes.ep}: does not divide {' nor '.join(undivided)}; "
            f"expected one of {list_divisors(math.gcd(shape.experts, pool))} [SL-nd-ep-indivisible]"
        )


def _batch(config: Config, axes: Axes) -> Iterator[str]:
    rows, micro = config.global_batch_size, config.micro_batch_size
    per_micro = micro * axes.dp
    wanted = f"TRAINER_GLOBAL_BATCH_SIZE={rows}"
    if rows % per_micro:
        yield (
            f"{wanted}: must be a multiple of TRAINER_MICRO_BATCH_SIZE={micro} x dp={axes.dp} = {per_micro}, "
            f"for example {max(1, rows // per_micro) * per_micro} [SL-nd-batch-indivisible]"
        )
        return
    count = count_micro_batches(rows, micro, axes.dp)
    yield from replica_problems(config, axes.dp_replicate, axes.dp_shard * axes.cp, count, axes.pp)
    if axes.pp == 1:
        return
    if count < axes.pp:
        yield (
            f"{wanted}, TRAINER_MICRO_BATCH_SIZE={micro}: makes {count} micro-batches on dp={axes.dp}, a pipeline of "
            f"pp={axes.pp} needs at least {axes.pp}; {4 * axes.pp} (TRAINER_GLOBAL_BATCH_SIZE="
            f"{4 * axes.pp * per_micro}) would keep it idle {_bubble_pct(axes.pp, 4 * axes.pp):.0f} % of the time "
            "[SL-nd-micro-batches-few]"
        )
    elif VIRTUAL_STAGES[config.pp_schedule] > 1 and count % axes.pp:
        yield (
            f"{wanted}, TRAINER_MICRO_BATCH_SIZE={micro}: makes {count} micro-batches on dp={axes.dp}, "
            f"TRAINER_PP_SCHEDULE={config.pp_schedule} needs a multiple of pp={axes.pp}, for example "
            f"TRAINER_GLOBAL_BATCH_SIZE={(count // axes.pp + 1) * axes.pp * per_micro} "
            "[SL-nd-micro-batches-interleaved]"
        )


def _bubble_pct(pp: int, micro_batches: int) -> float:
    """Return idle share of a 1f1b or gpipe pipeline with equal stages (Narayanan et al., arXiv 2104.04473, section
    2.2).
    """
    return 100.0 * (pp - 1) / (micro_batches + pp - 1)


def _adapters(config: Config, shape: DecoderShape) -> Iterator[str]:
    allowed = ATTENTION if shape.experts else (*ATTENTION, *MLP)
    targets = [name for name in config.lora_targets.split(",") if name]
    if wrong := [t for t in targets if t.removeprefix("self_attn.").removeprefix("mlp.") not in allowed]:
        yield (
            f"TRAINER_LORA_TARGETS={config.lora_targets!r}: strategy nd cannot split {', '.join(wrong)}; "
            f"expected some of {', '.join(allowed)} [SL-nd-lora-target]"
        )


def list_divisors(number: int) -> str:
    """Return `1, 2, 4`"""
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)


def pipeline_problems(config: Settings) -> Iterator[str]:
    """Yield knobs whose value a pipeline of more than one stage fixes."""
    if config.accumulate == "sharded":
        yield (
            "TRAINER_ACCUMULATE=sharded: not with a pipeline: its stages reduce once per step (torch's schedules); "
            "expected auto or whole [SL-pipeline-accumulate]"
        )
    if config.reshard_after_forward == "on":
        yield (
            "TRAINER_RESHARD_AFTER_FORWARD=on: not with a pipeline, which gathers once for all micro-batches of a "
            "step (torch's schedules); expected auto or off [SL-pipeline-reshard]"
        )


def replica_problems(
    config: Settings, replicas: int, shards: int, micro_batches: int, stages: int = 1
) -> Iterator[str]:
    """Check knobs that replicas of shards, or a single shard, cannot combine.

    torch keeps the sum of the micro-batches' shards that the replicas have yet to add up in the type of the reduction
    (torch 2.13, _fsdp_collectives.py, `partial_reduce_output`); without replicas it adds to fp32 gradients.
    """
    if replicas * shards == 1 and config.reduce_dtype == "bf16":
        yield (
            "TRAINER_REDUCE_DTYPE=bf16: no two ranks reduce here, and fully_shard would still round the gradients "
            "(torch 2.13); use fp32 [SL-reduce-bf16-alone]"
        )
    sums = replicas > 1 and micro_batches > 1 and accumulates_sharded(config, stages)
    if sums and config.reduce_dtype == "bf16":
        yield (
            f"TRAINER_REDUCE_DTYPE=bf16: with {replicas} replicas of the shards torch would add up the gradients of "
            f"{micro_batches} micro-batches in bf16, which fsdp does in fp32; take fp32, or TRAINER_ACCUMULATE=whole, "
            "which reduces once per step [SL-reduce-bf16-replicas]"
        )
