"""What is compared with one process: every strategy x model x world size, in several variants.

A variant changes how the work is cut up (accumulation, recomputation, gathers) and must change nothing, or changes the
update itself (clipping, precision) and then has a reference of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

from stratlab_spec.settings.fields import Strategy
from stratlab_spec.strategies import STRATEGIES as TABLE
from tests.parity import teachers
from tests.parity.suite import EXACT, Gates

GLOBAL_BATCH = 24
WORLD_SIZES = (1, 2, 4)
STRATEGIES: tuple[str, ...] = tuple(name for name in get_args(Strategy) if name != "nd")  # nd: parity_llm
MODELS: dict[str, dict[str, Any]] = {
    "vit_tiny": {"model": "vit_tiny"},
    "cnn": {"model": "cnn"},
    "vit_tiny + LoRA": {"model": "vit_tiny", "lora_rank": 4},
}


# bf16 keeps 8 bits: one process differs from itself with another micro-batch by about as much.
BF16 = Gates(loss=1e-2, grad_norm=5e-2, gradient=5e-2)
# 8 bits of each gathered weight; 4 bits of each gradient, rounded once on 2 processes and twice on 4, and in losses and
# norms the mean of many such roundings. A sum instead of a mean is outside, and so is a scale left out.
QWZ = Gates(loss=5e-2, grad_norm=5e-2, gradient=1e-1)
QGZ = Gates(loss=5e-2, grad_norm=1e-1, gradient=6e-1)
# Each strategy's own recipe against the common one: parameters and activations are rounded elsewhere.
BF16_NATIVE = Gates(loss=2e-2, grad_norm=2e-1, gradient=2e-1)


@dataclass(frozen=True)
class Variant:
    """One way to run a case.

    Attributes:
        accumulate: micro-batches per step.
        settings: of the run, on top of the case's.
        changes_result: settings that the reference has as well.
        only: strategies that have it; empty = all.
        models: that have it; empty = all.
        nightly: in the full table alone; every change has a test of its own for it.
        world_sizes: where it is tried; one thing at a time on 2 processes, all at once on every number.
        force_gathers: ZeRO-3 gathers every parameter anew instead of keeping the small ones.
    """

    accumulate: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    changes_result: dict[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    nightly: bool = False
    world_sizes: tuple[int, ...] = WORLD_SIZES
    force_gathers: bool = False
    gates: Gates = EXACT


DISTILLED = {"teacher": teachers.NAME, "distill_temperature": 3.0, "distill_alpha": 0.7}
SHARDS_PARAMETERS = ("zero3", "zeropp")
GATHERING = tuple(name for name, row in TABLE.items() if "prefetch_blocks" in row.knobs and name != "nd")
FULLY_SHARD = tuple(name for name, row in TABLE.items() if "accumulate" in row.knobs and name != "nd")
REDUCING = tuple(name for name in STRATEGIES if "reduce_dtype" in TABLE[name].knobs)
DEEPSPEED = tuple(name for name, row in TABLE.items() if row.deepspeed_stage)
COMPILED = tuple(name for name, row in TABLE.items() if row.deepspeed_stage != 3 and name != "nd")
OWN_BF16 = tuple(name for name, row in TABLE.items() if row.has_bf16_native)
VARIANTS: dict[str, Variant] = {
    "plain": Variant(),
    "adamw": Variant(changes_result={"optimizer": "adamw", "lr": 5e-4}),
    "accumulated": Variant(accumulate=3, world_sizes=(2,)),
    "clipped": Variant(changes_result={"clip_norm": 0.5}, world_sizes=(2,)),
    "checkpointed": Variant(settings={"activation_checkpointing": "blocks"}, world_sizes=(2,)),
    "every second block": Variant(settings={"activation_checkpointing": "every_2"}, world_sizes=(2,)),
    "selective": Variant(accumulate=2, settings={"activation_checkpointing": "selective"}, world_sizes=(2,)),
    "whole gradients": Variant(
        accumulate=3, settings={"accumulate": "whole"}, only=FULLY_SHARD, world_sizes=(2, 4)
    ),
    "kept gathered": Variant(
        accumulate=2, settings={"reshard_after_forward": "off"}, only=GATHERING, world_sizes=(2,)
    ),
    "two ahead": Variant(accumulate=2, settings={"prefetch_blocks": 2}, only=GATHERING, world_sizes=(2,)),
    "small buckets": Variant(
        accumulate=3, settings={"reduce_bucket_mib": 1}, only=("ddp", *DEEPSPEED), world_sizes=(2,)
    ),
    "no overlap": Variant(
        accumulate=2, settings={"overlap_reduction": False}, only=DEEPSPEED, world_sizes=(2,)
    ),
    "static graph": Variant(settings={"static_graph": True}, only=("ddp",), world_sizes=(2,)),
    "reduced in bf16": Variant(
        accumulate=2, settings={"reduce_dtype": "bf16"}, only=REDUCING, world_sizes=(2,), gates=BF16
    ),
    "all three": Variant(
        accumulate=2, settings={"activation_checkpointing": "blocks"}, changes_result={"clip_norm": 0.5}
    ),
    "forced gathers": Variant(accumulate=2, only=SHARDS_PARAMETERS, force_gathers=True),
    "bf16": Variant(changes_result={"precision": "bf16"}, gates=BF16),
    "distilled": Variant(changes_result=DISTILLED, world_sizes=(2, 4)),
    "distilled in bf16, accumulated": Variant(
        accumulate=2, settings={"activation_checkpointing": "blocks"},
        changes_result={"precision": "bf16", **DISTILLED}, world_sizes=(2,), gates=BF16,
    ),
    "distilled in bf16": Variant(
        changes_result={"precision": "bf16", **DISTILLED}, only=("single",), gates=BF16
    ),
    "bf16_native": Variant(
        settings={"precision": "bf16_native"}, changes_result={"precision": "bf16"}, only=OWN_BF16,
        world_sizes=(2,), gates=BF16_NATIVE,
    ),
    "compiled": Variant(
        accumulate=2, settings={"compile": True}, only=COMPILED, models=("vit_tiny", "vit_tiny + LoRA"),
        nightly=True, world_sizes=(2, 4),
    ),
    "qwz": Variant(
        accumulate=2, settings={"zeropp": "qwz"}, only=("zeropp",), world_sizes=(2, 4),
        force_gathers=True, gates=QWZ,
    ),
    "qgz": Variant(
        settings={"zeropp": "qgz"},
        only=("zeropp",),
        models=("vit_tiny", "cnn"),  # adapters are too small for blocks
        world_sizes=(4,),
        force_gathers=True,
        gates=QGZ,
    ),
    "hpz,qwz,qgz in bf16": Variant(
        accumulate=2, settings={"zeropp": "hpz,qwz,qgz"}, changes_result={"precision": "bf16"},
        only=("zeropp",), world_sizes=(4,), force_gathers=True, gates=QGZ,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    strategy: str
    model: str
    world_size: int
    variant: str

    @property
    def name(self) -> str:
        return f"{self.strategy}, {self.model}, {self.world_size}, {self.variant}"

    @property
    def labels(self) -> dict[str, Any]:
        return vars(self)

    @property
    def gates(self) -> Gates:
        return VARIANTS[self.variant].gates

    @property
    def force_gathers(self) -> bool:
        return VARIANTS[self.variant].force_gathers

    def settings(self) -> dict[str, Any]:
        variant = VARIANTS[self.variant]
        return {
            "strategy": self.strategy,
            "micro_batch_size": GLOBAL_BATCH // (self.world_size * variant.accumulate),
            **mesh_of(self.strategy, self.world_size), **MODELS[self.model], **variant.changes_result,
            **variant.settings,
        }  # fmt: skip

    def reference(self) -> Case:
        """One process, the whole batch at once, with nothing of what must not matter."""
        changes = VARIANTS[self.variant].changes_result
        plain = next(n for n, v in VARIANTS.items() if v.changes_result == changes and not v.settings)
        return Case("single", self.model, 1, plain)


def mesh_of(strategy: str, world_size: int) -> dict[str, int]:
    """hsdp on 4 processes is 2 x 2, which neither ddp nor fsdp is; the others fill up by themselves."""
    if strategy != "hsdp":
        return {}
    return {"dp_replicate": max(1, world_size // 2), "dp_shard": min(2, world_size)}


def processes_per_node(strategy: str, world_size: int) -> int:
    """hpZ keeps a second copy inside a node: 4 processes are 2 nodes of 2, so that it is not the whole world."""
    return 2 if strategy == "zeropp" and world_size == 4 else world_size


def cases_of(strategy: str, world_size: int) -> list[Case]:
    """Every model in every variant; `single` exists in one process only."""
    if strategy == "single" and world_size > 1:
        return []
    return [
        Case(strategy, model, world_size, name)
        for model in MODELS
        for name, variant in VARIANTS.items()
        if (not variant.only or strategy in variant.only)
        and (not variant.models or model in variant.models)
        and (world_size in variant.world_sizes or strategy == "single")
    ]
