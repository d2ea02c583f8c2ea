"""What a strategy can be tuned by: settings that some strategies have and others do not, one row each.

Which strategy has which knob is a column of settings/strategy_table.py; here stands why the default is what it is, and
what is said to the strategies that do not have it. What is left to a strategy (`auto`, 0) is decided here as well, and
recorded in config.json as `resolved.knobs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.settings.strategy_table import STRATEGIES

if TYPE_CHECKING:
    from trainer.settings.fields import Settings

MIB = 2**20
NO_EFFECT = "no effect: nothing is sharded"


@dataclass(frozen=True)
class Knob:
    """One knob."""

    reason: str
    """For its default."""
    others: str
    """Why the strategies that are without it are."""


KNOBS: dict[str, Knob] = {
    "accumulate": Knob(
        "sharded: whole gradients of the model on every rank cost more than all that fully_shard has sharded; a "
        "pipeline keeps them whole, since its stages reduce once, behind the last of many micro-batches",
        "single, ddp and zero1 hold whole gradients anyway, zero2, zero3 and zeropp shards",
    ),
    "reshard_after_forward": Knob(
        "on: each block is whole only while it computes, the reason to shard parameters at all; a pipeline keeps its "
        "own for all micro-batches of a step, between which it would gather them again and again",
        "nothing is gathered before the forward pass",
    ),
    "prefetch_blocks": Knob(
        "1, torch's own: one block travels while another computes; more hides no more where a block computes for "
        "longer than it travels, and each takes its memory",
        "no block is gathered",
    ),
    "reduce_bucket_mib": Knob(
        "ddp 25, torch's own; DeepSpeed's 192: its own 1.9 GiB, twice over with overlap_reduction, take more memory "
        "than they save time, for a reduction of some 100 MiB has the full speed of the links already",
        "fully_shard reduces the gradients of one block together, and single none",
    ),
    "gather_bucket_mib": Knob(
        "192, as for reduce_bucket_mib",
        "only zero1 and zero2 gather all weights after the update",
    ),
    "overlap_reduction": Knob(
        "on, as ddp, fsdp, hsdp and nd do; it takes a second bucket",
        "their reductions always run beside the backward pass",
    ),
    "persistent_elements": Knob(
        "100,000, DeepSpeed's own: norms and biases travel more slowly than they are held",
        "only DeepSpeed's stage 3 can leave small parameters whole",
    ),
    "reduce_dtype": Knob(
        "fp32: the recipe of bf16 promises reductions in fp32 (settings/precision.py)",
        "nothing is reduced",
    ),
    "static_graph": Knob(
        "off, torch's own: it saves the search for parameters without a gradient, of which there is none here",
        "a switch of DistributedDataParallel",
    ),
}

for _name, _row in STRATEGIES.items():
    assert not set(_row.knobs) - set(KNOBS), f"{_name}: {set(_row.knobs) - set(KNOBS)} are no knobs"


def misplaced_knobs(config: Settings) -> Iterator[str]:
    """One sentence per knob that is set and that the strategy does not have."""
    own = STRATEGIES[config.strategy].knobs
    for name, knob in KNOBS.items():
        if name in config.model_fields_set and name not in own:
            having = ", ".join(each for each, row in STRATEGIES.items() if name in row.knobs)
            value = getattr(config, name)
            typed = str(value).lower() if isinstance(value, bool) else value
            yield (
                f"TRAINER_{name.upper()}={typed}: strategy {config.strategy} has no such knob "
                f"({knob.others}), only {having}; leave it out [SL-knob-strategy]"
            )


def pipeline_problems(config: Settings) -> Iterator[str]:
    """Knobs that a pipeline of more than one stage leaves no choice in."""
    if config.accumulate == "sharded":
        yield (
            "TRAINER_ACCUMULATE=sharded: not with a pipeline, whose stages reduce once per step (torch's schedules); "
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
    """Knobs that replicas of shards cannot have together, or one shard alone.

    torch keeps the sum of the micro-batches' shards that the replicas have yet to add up in the type of the reduction
    (torch 2.13, _fsdp_collectives.py, `partial_reduce_output`); without replicas it adds to fp32 gradients.
    """
    if replicas * shards == 1 and config.reduce_dtype == "bf16":
        yield (
            "TRAINER_REDUCE_DTYPE=bf16: no two ranks reduce here, and fully_shard would round the gradients all the "
            "same (torch 2.13); take fp32 [SL-reduce-bf16-alone]"
        )
    sums = replicas > 1 and micro_batches > 1 and accumulates_sharded(config, stages)
    if sums and config.reduce_dtype == "bf16":
        yield (
            f"TRAINER_REDUCE_DTYPE=bf16: with {replicas} replicas of the shards torch would add up the gradients of "
            f"{micro_batches} micro-batches in bf16, which fsdp does in fp32; take fp32, or TRAINER_ACCUMULATE=whole, "
            "which reduces once per step [SL-reduce-bf16-replicas]"
        )


def accumulates_sharded(config: Settings, stages: int = 1) -> bool:
    """Whether fully_shard reduces the gradients of each micro-batch, instead of those of the step.

    Args:
        stages: of a pipeline.
    """
    return stages == 1 if config.accumulate == "auto" else config.accumulate == "sharded"


def reshards_after_forward(config: Settings, stages: int = 1) -> bool:
    """Whether parameters are given back between forward and backward pass, and gathered twice."""
    automatic = config.reshard_after_forward == "auto"
    return stages == 1 if automatic else config.reshard_after_forward == "on"


def reduce_bucket_bytes(config: Settings) -> int:
    """Gradients that are reduced together by ddp and DeepSpeed."""
    return (config.reduce_bucket_mib or STRATEGIES[config.strategy].reduce_bucket_mib) * MIB


def resolve_knobs(config: Settings, stages: int = 1, *, shards: bool = True) -> dict[str, Any]:
    """Every knob of the run's strategy with the value that it came to.

    Args:
        shards: whether fully_shard has more than one rank to shard over; else nothing is gathered.
    """
    decided: dict[str, Any] = {
        "accumulate": "sharded" if accumulates_sharded(config, stages) else "whole",
        "reshard_after_forward": "on" if reshards_after_forward(config, stages) else "off",
        "reduce_bucket_mib": reduce_bucket_bytes(config) // MIB,
    }
    own = STRATEGIES[config.strategy].knobs
    if not shards and "accumulate" in own:  # one of fully_shard's strategies
        decided |= dict.fromkeys(("reshard_after_forward", "prefetch_blocks"), NO_EFFECT)
    return {name: decided.get(name, getattr(config, name)) for name in own}
