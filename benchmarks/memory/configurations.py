"""The counted configurations: every strategy on two models that people train, with the memory before its optimization.

`count_one` counts one configuration in this process; `describe_code` identifies the code that counted it.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pkgutil
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

GIB = 2**30
WARM = (
    *("torch", "trainer.memory_estimation.steps", "transformers.models.vit.modeling_vit"),
    *("transformers.models.qwen2.modeling_qwen2", "torch.distributed.pipelining.schedules", "peft"),
    *("deepspeed.runtime.zero.stage3", "deepspeed.runtime.zero.stage_1_and_2"),
)
ROOMS = ("trainer.strategies", "trainer.models")
"""Packages whose modules all count."""
BEFORE = "stand-alone count on fake tensors at e7ae6af, torch 2.13, deepspeed 0.19.8; no GPU"
"""Origin of `before_gib`: the engines before, when each had logits, copies and masks of the lab's own."""


@dataclass(frozen=True)
class Configuration:
    """One rank of one run."""

    name: str
    settings: str
    before_gib: float | None = None
    """The peak at that commit."""
    ranks: int = 8
    rank: int = 0
    at_most_gib: float | None = None
    """The lab's promise."""
    alone: str = ""
    """The configuration of one process that has the same work per rank: the arithmetic takes its activations."""
    labels: int = 1000


VIT = "model=vit_huge dataset=timm/imagenet-1k precision=bf16 micro_batch_size=32 global_batch_size=512"
QWEN = "model=qwen2.5-3b dataset=metamathqa precision=bf16 seq_len=2048"
ROWS4 = f"{QWEN} micro_batch_size=4 global_batch_size=64"
ROWS1 = f"{QWEN} micro_batch_size=1 global_batch_size=16"
SHARDS = "strategy=nd layout=given dp_shard=8"
PIPELINE = f"{QWEN} micro_batch_size=1 global_batch_size=64 strategy=nd layout=given pp=2 dp_shard=4"
LONG1 = "strategy=ddp seq_len=4096 global_batch_size=8"
LONG4 = "strategy=ddp seq_len=4096 global_batch_size=32"
FP32, NATIVE, UNPACKED = "precision=fp32", "precision=bf16_native", "packing=false"
RECOMPUTED, CHUNKS = "activation_checkpointing=blocks", "loss_chunk_tokens=512"


def _vit(strategy: str, more: str, before_gib: float, **others: object) -> Configuration:
    name = " ".join(["vit_huge", strategy, more]).strip()
    return Configuration(name, f"{VIT} strategy={strategy} {more}", before_gib, **others)  # type: ignore[arg-type]


def _qwen(name: str, settings: str, before_gib: float | None = None, **others: object) -> Configuration:
    return Configuration(f"qwen2.5-3b {name}", settings, before_gib, **others)  # type: ignore[arg-type]


VIT_ALONE, QWEN_ALONE = "vit_huge single", "qwen2.5-3b single"
VIT_HUGE = (
    Configuration(VIT_ALONE, f"{VIT} strategy=single global_batch_size=64", ranks=1),
    Configuration("vit_huge single fp32", f"{VIT} strategy=single {FP32} global_batch_size=64", ranks=1),
    _vit("ddp", "", 25.70, alone=VIT_ALONE),
    _vit("ddp", "global_batch_size=256", 23.34),
    _vit("ddp", FP32, 32.12),
    _vit("ddp", RECOMPUTED, 14.47),
    _vit("fsdp", "", 15.29, alone=VIT_ALONE, at_most_gib=12.0),
    _vit("fsdp", "global_batch_size=256", 14.97),
    _vit("fsdp", FP32, 21.71),
    _vit("fsdp", RECOMPUTED, 4.04),
    _vit("hsdp", "dp_replicate=2 dp_shard=4", 16.46, alone=VIT_ALONE),
    _vit("zero1", "", 19.72, alone=VIT_ALONE),
    _vit("zero1", FP32, 26.14),
    _vit("zero1", NATIVE, 13.54),
    _vit("zero2", "", 17.66, alone=VIT_ALONE),
    _vit("zero2", FP32, 24.08),
    _vit("zero2", NATIVE, 12.51),
    _vit("zero3", "", 18.03, alone=VIT_ALONE),
    _vit("zero3", FP32, 24.39),
    _vit("zero3", NATIVE, 12.77),
    _vit("zero3", RECOMPUTED, 6.91),
    _vit("zeropp", "", 18.32),
)
QWEN_3B = (
    _qwen("single", f"{ROWS4} strategy=single global_batch_size=8", ranks=1),
    _qwen("ddp", f"{ROWS4} strategy=ddp", 124.08, alone=QWEN_ALONE),
    _qwen("ddp chunks of 512", f"{ROWS4} strategy=ddp {CHUNKS}", 124.08, at_most_gib=96.0),
    _qwen("ddp not packed", f"{ROWS4} strategy=ddp {UNPACKED}", 120.98),
    _qwen("ddp checkpointing", f"{ROWS4} strategy=ddp {RECOMPUTED}", 76.70),
    _qwen("zero1", f"{ROWS4} strategy=zero1", 94.09, alone=QWEN_ALONE),
    _qwen("zero2", f"{ROWS4} strategy=zero2", 83.85, alone=QWEN_ALONE),
    _qwen("zero3", f"{ROWS4} strategy=zero3", 77.70, alone=QWEN_ALONE),
    _qwen("zero3 chunks of 512", f"{ROWS4} strategy=zero3 {CHUNKS}", 77.70, at_most_gib=56.0),
    _qwen("zero3 bf16_native", f"{ROWS4} strategy=zero3 {NATIVE}", 66.87),
    _qwen("fsdp", f"{ROWS4} strategy=fsdp", 73.51, alone=QWEN_ALONE),
    _qwen("fsdp chunks of 512", f"{ROWS4} strategy=fsdp {CHUNKS}", 73.51, at_most_gib=52.0),
    _qwen("fsdp not packed", f"{ROWS4} strategy=fsdp {UNPACKED}", 70.41),
    _qwen("fsdp checkpointing", f"{ROWS4} strategy=fsdp {RECOMPUTED}", 26.13),
    _qwen("fsdp selective", f"{ROWS4} strategy=fsdp activation_checkpointing=selective"),
    _qwen("nd", f"{ROWS4} {SHARDS}", 75.45, alone=QWEN_ALONE),
    _qwen("nd not packed", f"{ROWS4} {SHARDS} {UNPACKED}", 72.36),
    _qwen("nd checkpointing", f"{ROWS4} {SHARDS} {RECOMPUTED}", 28.08),
)
ONE_ROW = (
    _qwen("1 row single", f"{ROWS1} strategy=single global_batch_size=1", 55.45, ranks=1),
    _qwen("1 row fsdp", f"{ROWS1} strategy=fsdp", 27.87),
    _qwen("1 row fsdp checkpointing", f"{ROWS1} strategy=fsdp {RECOMPUTED}", 14.72),
    _qwen("1 row fsdp fp32", f"{ROWS1} strategy=fsdp {FP32}", 29.88),
    _qwen("1 row fsdp fp32 not packed", f"{ROWS1} strategy=fsdp {FP32} {UNPACKED}", 38.31),
    _qwen("1 row zero3", f"{ROWS1} strategy=zero3", 32.06),
    _qwen("1 row zero3 checkpointing", f"{ROWS1} strategy=zero3 {RECOMPUTED}", 18.64),
    _qwen("1 row nd tp2.dp4", f"{ROWS1} strategy=nd layout=given tp=2 dp_shard=4 global_batch_size=8", 22.82),
    _qwen(
        "1 row nd tp2.cp2.dp2",
        f"{ROWS1} strategy=nd layout=given tp=2 cp=2 dp_shard=2 global_batch_size=4",
        18.38,
    ),
    _qwen(
        "1 row nd pp2.dp2.tp2 stage 0",
        f"{ROWS1} strategy=nd layout=given pp=2 tp=2 dp_shard=2 global_batch_size=64",
        22.35,
    ),
    _qwen("1 row ddp LoRA 16", f"{ROWS1} strategy=ddp lora_rank=16", 29.65),
)
STAGES = (
    _qwen("1f1b stage 0", PIPELINE, 34.06),
    _qwen("1f1b stage 1", PIPELINE, 29.89, rank=4),
    _qwen("gpipe stage 0", f"{PIPELINE} pp_schedule=gpipe", 141.99),
    _qwen("gpipe stage 1", f"{PIPELINE} pp_schedule=gpipe", 163.44, rank=4),
    _qwen("gpipe checkpointing stage 0", f"{PIPELINE} pp_schedule=gpipe {RECOMPUTED}", 23.03),
)
LONG = (
    _qwen("nd, 64 rows", f"{ROWS1} {SHARDS} global_batch_size=64", 37.35),
    _qwen("4096 tokens, 1 row", f"{ROWS1} {LONG1}", 82.72),
    _qwen("4096 tokens, 1 row, not packed", f"{ROWS1} {LONG1} {UNPACKED}", 80.61),
    _qwen("4096 tokens, 4 rows", f"{ROWS4} {LONG4}", 175.68),
    _qwen("4096 tokens, 4 rows, not packed", f"{ROWS4} {LONG4} {UNPACKED}", 167.25),
    _qwen("4096 tokens, checkpointing", f"{ROWS4} {LONG4} {RECOMPUTED}", 83.85),
)
CONFIGURATIONS = (*VIT_HUGE, *QWEN_3B, *ONE_ROW, *STAGES, *LONG)
SMALLEST = (VIT_ALONE, "vit_huge fsdp")
"""The fastest ones, the arithmetic included."""


def warm_up() -> None:
    """Import the modules that every count needs."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a thread pool does not survive a fork
    for name in WARM:
        importlib.import_module(name)
    for room in map(importlib.import_module, ROOMS):
        for module in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            importlib.import_module(module.name)


def count_one(one: Configuration) -> tuple[Configuration, dict[str, Any]]:
    """Return (the same, figures in GiB and costs), or the error under `failed`."""
    from stratlab_spec.models.pictures import find_pictures
    from stratlab_spec.settings.config import Config
    from trainer.memory_estimation.steps import count

    warnings.filterwarnings("ignore")
    named = dict(setting.split("=", 1) for setting in f"run=benchmark {one.settings}".split())
    began, cpu = time.perf_counter(), time.process_time()
    try:
        config = Config.from_env({f"TRAINER_{name.upper()}": value for name, value in named.items()})
        found = count(config, one.ranks, one.rank, find_pictures(config, one.labels))
    except Exception:
        return one, {"failed": traceback.format_exc()[-2000:]}
    figures = {"peak": found.peak.total, "between": found.between.total, **found.peak.by_cause()}
    return one, {
        "gib": {name: round(size / GIB, 4) for name, size in figures.items()},
        "wall_s": round(time.perf_counter() - began, 1),
        "cpu_s": round(time.process_time() - cpu, 1),
        "operators": found.operators,
    }


def describe_code() -> dict[str, str]:
    """Return the figures' versions, after `warm_up`: the imported sources of `trainer`, and the libraries."""
    parts = {name: m.__file__ for name, m in sys.modules.items() if name.split(".")[0] == "trainer"}
    digest = hashlib.sha256()
    for name in sorted(parts):
        digest.update(name.encode() + b"\0" + Path(parts[name] or os.devnull).read_bytes())
    libraries = ("torch", "deepspeed", "transformers", "peft")
    return {"trainer_sha256": digest.hexdigest(), **{name: version(name) for name in libraries}}
