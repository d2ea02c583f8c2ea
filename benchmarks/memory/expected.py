"""What was counted before this instrument was written, and of which settings. All in GiB.

Origin: a stand-alone count of the same engines on fake tensors, at commit e7ae6af with torch 2.13 and deepspeed
0.19.8; rank 0 of 8 unless said, second step, sizes rounded to 512 bytes, CUDA's autocast and attention by the same
rules. No GPU took part.

Since then the loss is computed inside the forward, which lets go of the logits before the backward begins: what runs
without nd hold less at their peak by LOGITS_ROW for each row of 2048 tokens (in fp32, where logits have 4 bytes, twice
that). With fully_shard the backward begins one node earlier, at the loss, and so does the gather of the last layer
(LAST_LAYER, if the peak is there). Both are written as such beside the old figure.
"""

from __future__ import annotations

from dataclasses import dataclass

ORIGIN = "count on fake tensors at e7ae6af, torch 2.13, deepspeed 0.19.8; no GPU"
LOGITS, COPIES, MASKS = "logits and loss", "low-precision copies", "masks"


@dataclass(frozen=True)
class Expected:
    """Settings, and figures by name: peak, between, or the share of a cause at the peak."""

    name: str
    settings: str
    figures: dict[str, float]
    ranks: int = 8
    rank: int = 0
    claims: str = ""
    """Which claims about memory the figures stand for."""
    labels: int = 1000


VIT = "model=vit_huge dataset=timm/imagenet-1k precision=bf16 micro_batch_size=32 global_batch_size=512"
QWEN = "model=qwen2.5-3b dataset=metamathqa precision=bf16 seq_len=2048"
ROWS4 = f"{QWEN} micro_batch_size=4 global_batch_size=64"
ROWS1 = f"{QWEN} micro_batch_size=1 global_batch_size=16"
SHARDS = "strategy=nd layout=given dp_shard=8"
PIPELINE = f"{QWEN} micro_batch_size=1 global_batch_size=64 strategy=nd layout=given pp=2 dp_shard=4"
LONG1 = "strategy=ddp seq_len=4096 global_batch_size=8"
LONG4 = "strategy=ddp seq_len=4096 global_batch_size=32"
"""One micro-batch per step: with two, DDP holds the gradients twice (11.5 GiB more)."""
LOGITS_ROW = 2048 * 151936 * 2 / 2**30
"""Of Qwen2.5-3B, one row of 2048 tokens in bf16."""
LAST_LAYER = 77_078_016 * 4 / 2**30
"""Its parameters in fp32."""
ROW4_GONE = 4 * LOGITS_ROW
ZERO3_LIVE_GIB = 1e9 * 4 / 2**30
"""DeepSpeed's stage3_max_live_parameters, in fp32."""


def _vit(strategy: str, more: str = "", **figures: float) -> Expected:
    name = " ".join(["vit_huge", strategy, more]).strip()
    return Expected(name, f"{VIT} strategy={strategy} {more}", figures)


def _single(precision: str, **figures: float) -> Expected:
    settings = f"{VIT} strategy=single precision={precision} global_batch_size=32"
    return Expected(f"vit_huge single {precision}", settings, figures, ranks=1)


def _qwen(name: str, settings: str, figures: dict[str, float], **others: object) -> Expected:
    return Expected(f"qwen2.5-3b {name}", settings, figures, **others)  # type: ignore[arg-type]


FP32, NATIVE, RECOMPUTED = "precision=fp32", "precision=bf16_native", "grad_checkpointing=true"
UNPACKED = "packing=false"

VIT_HUGE = (
    _single("bf16", peak=20.99, between=7.06),
    _single("fp32", peak=27.41),
    _vit("ddp", peak=25.70, between=9.42),
    _vit("ddp", "global_batch_size=256", peak=23.34),
    _vit("ddp", FP32, peak=32.12),
    _vit("ddp", NATIVE, peak=25.70),
    _vit("ddp", RECOMPUTED, peak=14.47),
    Expected(
        "vit_huge fsdp", f"{VIT} strategy=fsdp", {"peak": 15.29, "between": 0.89, COPIES: 1.17}, claims="b"
    ),
    _vit("fsdp", "global_batch_size=256", peak=14.97),
    _vit("fsdp", FP32, peak=21.71),
    _vit("fsdp", NATIVE, peak=11.48),
    _vit("fsdp", RECOMPUTED, peak=4.04),
    _vit("hsdp", "dp_replicate=2 dp_shard=4", peak=16.46, between=1.77),
    _vit("zero1", peak=19.72, between=3.24),
    _vit("zero1", FP32, peak=26.14),
    _vit("zero1", NATIVE, peak=13.54),
    _vit("zero2", peak=17.66, between=3.24),
    _vit("zero2", FP32, peak=24.08),
    _vit("zero2", NATIVE, peak=12.51),
    _vit("zero3", peak=18.03, between=1.66),
    _vit("zero3", FP32, peak=24.39),
    _vit("zero3", NATIVE, peak=12.77),
    _vit("zero3", RECOMPUTED, peak=6.91),
    _vit("zeropp", peak=18.32, between=1.66),  # its 8 ranks share a node, which training refuses with hpz
)

# 3 fp32 [8192 tokens, 151936 words] and the bf16 logits; the bf16 copy of all weights; the packing mask of 36 layers
AT_LOSS = {LOGITS: 16.2 - ROW4_GONE, COPIES: 5.75, MASKS: 1.125}
QWEN_3B = (
    _qwen(
        "ddp",
        f"{ROWS4} strategy=ddp",
        {"peak": 124.08 - ROW4_GONE, "between": 45.98, **AT_LOSS},
        claims="a, b, e",
    ),
    _qwen("ddp not packed", f"{ROWS4} strategy=ddp {UNPACKED}", {"peak": 120.98 - ROW4_GONE}),
    _qwen("ddp checkpointing", f"{ROWS4} strategy=ddp {RECOMPUTED}", {"peak": 76.70 - ROW4_GONE}),
    _qwen("zero1", f"{ROWS4} strategy=zero1", {"peak": 94.09 - ROW4_GONE, "between": 15.81}),
    _qwen("zero2", f"{ROWS4} strategy=zero2", {"peak": 83.85 - ROW4_GONE, "between": 15.81}),
    _qwen("zero3", f"{ROWS4} strategy=zero3", {"peak": 77.70 - ROW4_GONE, "between": 7.37}),
    _qwen("zero3 bf16_native", f"{ROWS4} strategy=zero3 {NATIVE}", {"peak": 66.87 - ROW4_GONE}),
    _qwen(
        "fsdp",
        f"{ROWS4} strategy=fsdp",
        {"peak": 73.51 - ROW4_GONE + LAST_LAYER, "between": 4.31, **AT_LOSS},
        claims="a, b, e",
    ),
    _qwen("fsdp not packed", f"{ROWS4} strategy=fsdp {UNPACKED}", {"peak": 70.41 - ROW4_GONE + LAST_LAYER}),
    _qwen(
        "fsdp checkpointing", f"{ROWS4} strategy=fsdp {RECOMPUTED}", {"peak": 26.13 - ROW4_GONE + LAST_LAYER}
    ),
    _qwen(
        "fsdp bf16_native", f"{ROWS4} strategy=fsdp {NATIVE}", {"peak": 61.52 - ROW4_GONE + LAST_LAYER / 2}
    ),
    _qwen(
        "nd",
        f"{ROWS4} {SHARDS}",
        {"peak": 75.45, "between": 4.31, LOGITS: 8.1, COPIES: 5.75},
        claims="a, b",
    ),
    _qwen("nd not packed", f"{ROWS4} {SHARDS} {UNPACKED}", {"peak": 72.36}),
    _qwen("nd checkpointing", f"{ROWS4} {SHARDS} {RECOMPUTED}", {"peak": 28.08}),
    _qwen("nd bf16_native", f"{ROWS4} {SHARDS} {NATIVE}", {"peak": 63.46}),
)

ONE_ROW = (
    _qwen(
        "1 row single", f"{ROWS1} strategy=single global_batch_size=1", {"peak": 55.45 - LOGITS_ROW}, ranks=1
    ),
    _qwen(
        "1 row fsdp",
        f"{ROWS1} strategy=fsdp",
        {"peak": 27.87 - LOGITS_ROW + LAST_LAYER, LOGITS: 4.06 - LOGITS_ROW, COPIES: 5.75},
        claims="a, b",
    ),
    _qwen(
        "1 row fsdp checkpointing",
        f"{ROWS1} strategy=fsdp {RECOMPUTED}",
        {"peak": 14.72 - LOGITS_ROW, COPIES: 5.75},
        claims="b",
    ),
    _qwen("1 row fsdp fp32", f"{ROWS1} strategy=fsdp {FP32}", {"peak": 29.88 - 2 * LOGITS_ROW + LAST_LAYER}),
    _qwen(
        "1 row fsdp fp32 not packed",
        f"{ROWS1} strategy=fsdp {FP32} {UNPACKED}",
        {"peak": 38.31 - 2 * LOGITS_ROW + LAST_LAYER},
    ),
    _qwen(
        "1 row zero3",
        f"{ROWS1} strategy=zero3",
        {"peak": 32.06 - LOGITS_ROW, COPIES: 5.75, "gathered": ZERO3_LIVE_GIB},
        claims="b",
    ),
    _qwen(
        "1 row zero3 checkpointing",
        f"{ROWS1} strategy=zero3 {RECOMPUTED}",
        {"peak": 18.64 - LOGITS_ROW, COPIES: 5.75},
        claims="b",
    ),
    _qwen(
        "1 row nd tp2.dp4",
        f"{ROWS1} strategy=nd layout=given tp=2 dp_shard=4 global_batch_size=8",
        {"peak": 22.82},
    ),
    _qwen(
        "1 row nd tp2.cp2.dp2",
        f"{ROWS1} strategy=nd layout=given tp=2 cp=2 dp_shard=2 global_batch_size=4",
        {"peak": 18.38},
    ),
    _qwen(
        "1 row nd pp2.dp2.tp2 stage 0",
        f"{ROWS1} strategy=nd layout=given pp=2 tp=2 dp_shard=2 global_batch_size=64",
        {"peak": 22.35},
    ),
    _qwen("1 row ddp LoRA 16", f"{ROWS1} strategy=ddp lora_rank=16", {"peak": 29.65 - LOGITS_ROW}),
)

STAGES = (
    _qwen("1f1b stage 0", PIPELINE, {"peak": 34.06, COPIES: 5.17}, claims="c"),
    _qwen("1f1b stage 1", PIPELINE, {"peak": 29.89, COPIES: 3.16}, rank=4, claims="c"),
    _qwen("gpipe stage 0", f"{PIPELINE} pp_schedule=gpipe", {"peak": 141.99, COPIES: 41.30}, claims="c"),
    _qwen(
        "gpipe stage 1",
        f"{PIPELINE} pp_schedule=gpipe",
        {"peak": 163.44, COPIES: 50.62},
        rank=4,
        claims="c",
    ),
    _qwen(
        "gpipe bf16_native stage 0",
        f"{PIPELINE} pp_schedule=gpipe {NATIVE}",
        {"peak": 88.0, COPIES: 0},
        claims="c",
    ),
    _qwen(
        "gpipe checkpointing stage 0",
        f"{PIPELINE} pp_schedule=gpipe {RECOMPUTED}",
        {"peak": 23.03, COPIES: 0},
        claims="c",
    ),
)

SHIPPED = (
    _qwen(
        "nd, 64 rows",
        f"{ROWS1} {SHARDS} global_batch_size=64",
        {"peak": 37.35, "gradients": 11.50},
        claims="d",
    ),
)

LONG_ROWS = (
    _qwen(
        "4096 tokens, 1 row", f"{ROWS1} {LONG1}", {"peak": 82.72 - 2 * LOGITS_ROW, MASKS: 1.125}, claims="e"
    ),
    _qwen(
        "4096 tokens, 1 row, not packed",
        f"{ROWS1} {LONG1} {UNPACKED}",
        {"peak": 80.61 - 2 * LOGITS_ROW},
        claims="e",
    ),
    _qwen(
        "4096 tokens, 4 rows", f"{ROWS4} {LONG4}", {"peak": 175.68 - 2 * ROW4_GONE, MASKS: 4.50}, claims="e"
    ),
    _qwen(
        "4096 tokens, 4 rows, not packed",
        f"{ROWS4} {LONG4} {UNPACKED}",
        {"peak": 167.25 - 2 * ROW4_GONE},
        claims="e",
    ),
    _qwen(
        "4096 tokens, checkpointing",
        f"{ROWS4} {LONG4} {RECOMPUTED}",
        {"peak": 83.85 - 2 * ROW4_GONE},
        claims="e",
    ),
)

EXPECTED = (*VIT_HUGE, *QWEN_3B, *ONE_ROW, *STAGES, *SHIPPED, *LONG_ROWS)
SMALLEST = ("vit_huge ddp global_batch_size=256",)
"""What takes the least time."""
