"""The runs: twelve with a fault that the run must name and one more, twenty as they are that may not be marked."""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from stratlab_spec.settings.config import PREFIX, Config
from tests.memory_faults.plant import CAUSES

STEPS = 3
"""Of a run so short the last one counts, and is taken apart (trainer/measuring/memory.py)."""
SHARED: dict[str, Any] = {name: STEPS for name in ("steps", "log_every", "evaluate_every")} | {
    "profile_steps": 0
}
TEXT: dict[str, Any] = {
    "model": "qwen_tiny", "dataset": "arithmetic", "seq_len": 128, "loss_chunk_tokens": 128, "model_vocab": 2048,
    "model_layers": 2, "micro_batch_size": 2,
}  # fmt: skip
CNN: dict[str, Any] = {"model": "cnn", "dataset": "digits", "image_size": 32, "micro_batch_size": 32}
IMAGES: dict[str, Any] = CNN | {"model": "vit_tiny", "model_layers": 2, "micro_batch_size": 24}
CHECKPOINTING = {"activation_checkpointing": "blocks"}
TWO_BY_TWO = {"dp_replicate": 2, "dp_shard": 2}


@dataclass(frozen=True)
class Case:
    """One run of the real worker on `ranks` processes, with a fault of tests/memory_faults/plant.py, or ""."""

    name: str
    ranks: int
    micro_batches: int
    settings: dict[str, Any]
    fault: str = ""

    @property
    def rows(self) -> int:
        return self.ranks // prod(self.settings.get(axis, 1) for axis in ("tp", "cp", "pp"))

    def variables(self, results: Path) -> dict[str, str]:
        batch = self.settings["micro_batch_size"] * self.micro_batches * self.rows
        named = {**SHARED, **self.settings, "global_batch_size": batch, "results": results}
        named |= {"comparison": "memory-faults", "run": re.sub(r"[ .,]+", "-", self.name)}
        return {f"{PREFIX}{name.upper()}": str(value) for name, value in named.items()}

    def config(self, results: Path) -> Config:
        return Config.from_env(self.variables(results))


def _text(strategy: str, precision: str, **more: Any) -> dict[str, Any]:
    return {**TEXT, "strategy": strategy, "precision": precision, **more}


def _images(strategy: str, precision: str, **more: Any) -> dict[str, Any]:
    return {**IMAGES, "strategy": strategy, "precision": precision, **more}


def _nd(**axes: Any) -> dict[str, Any]:
    return _text("nd", "bf16", layout="given", **axes)


CLEAN = (
    Case("single images fp32", 1, 1, _images("single", "fp32")),
    Case("ddp images fp32 accumulation", 2, 2, _images("ddp", "fp32")),
    Case("ddp cnn fp32", 2, 1, {**CNN, "strategy": "ddp", "precision": "fp32"}),
    Case("fsdp images bf16", 2, 1, _images("fsdp", "bf16")),
    Case("hsdp images fp32", 4, 1, _images("hsdp", "fp32", **TWO_BY_TWO)),
    Case("zero1 images fp32", 2, 1, _images("zero1", "fp32")),
    Case("zero2 images bf16 accumulation", 2, 2, _images("zero2", "bf16")),
    Case("zero3 images fp32", 2, 1, _images("zero3", "fp32")),
    Case("ddp text fp32", 2, 1, _text("ddp", "fp32", micro_batch_size=3)),
    Case("ddp text bf16 accumulation", 2, 2, _text("ddp", "bf16", micro_batch_size=6)),
    Case("fsdp text fp32 accumulation", 2, 2, _text("fsdp", "fp32")),
    Case("fsdp text bf16 checkpointing", 2, 1, _text("fsdp", "bf16", micro_batch_size=3, **CHECKPOINTING)),
    Case("hsdp text bf16", 4, 1, _text("hsdp", "bf16", **TWO_BY_TWO)),
    Case("zero1 text bf16 accumulation", 2, 2, _text("zero1", "bf16")),
    Case("zero2 text fp32 checkpointing", 2, 1, _text("zero2", "fp32", **CHECKPOINTING)),
    Case("zero3 text bf16", 2, 1, _text("zero3", "bf16")),
    Case("nd dp2 text bf16 accumulation", 2, 2, _nd(dp_shard=2, micro_batch_size=3)),
    Case("nd dp2.tp2 text bf16", 4, 1, _nd(dp_shard=2, tp=2)),
    Case("nd pp2.dp2 text bf16 accumulation", 4, 4, _nd(pp=2, dp_shard=2)),
    Case("nd cp2 text bf16 checkpointing", 2, 1, _nd(cp=2, **CHECKPOINTING)),
)
"""Strategies of every engine, images and text, both precisions; some with a micro-batch that no count has."""
FAULTY = tuple(
    Case(f"{name} {fault}", ranks, 2, {**settings, "micro_batch_size": 1}, fault)
    for name, ranks, settings in (
        ("ddp", 2, _text("ddp", "fp32")),
        ("fsdp", 2, _text("fsdp", "fp32")),
        ("zero2", 2, _text("zero2", "fp32")),
        ("nd dp2.tp2", 4, _nd(dp_shard=2, tp=2)),
    )
    for fault in CAUSES
)
BUCKETED = (Case("ddp weights, one micro-batch", 2, 1, _text("ddp", "fp32", micro_batch_size=1), "weights"),)
"""Beside the twelve: here DDP's buckets outlive the gradients in them, and must not be taken for copies."""
CASES = (*FAULTY, *BUCKETED, *CLEAN)
