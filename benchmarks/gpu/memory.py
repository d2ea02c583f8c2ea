"""Predicted memory against the allocator's own peak: small runs of many kinds (docs/memory.md).

The engines allocate a tensor's bytes; the peak that the card's allocator reports has to equal the count. The same gate
judges the runs of `project` and `strategies`. Several runs share the card: each has an allocator of its own, and
their times are not used.
"""

from __future__ import annotations

from benchmarks.gpu.project import train_all
from benchmarks.gpu.session import Session

SHORT = "short"
KIND_NAMES = """
qwen2.5-0.5b:single qwen2.5-0.5b:zero3 qwen2.5-0.5b:fsdp+checkpointing vit_base:single+lora qwen2.5-0.5b:ddp
qwen2.5-0.5b:zero2 vit_base:single+fp16 qwen2.5-0.5b:nd resnet:ddp qwen2.5-0.5b:fsdp qwen2.5-0.5b:single+lora
vit_base:zero1+native qwen2.5-0.5b:zero2+native qwen2.5-0.5b:single+unpacked vit_base:single+checkpointing
qwen2.5-0.5b:zero1 qwen2.5-0.5b:hsdp qwen2.5-0.5b:single+selective vit_base:fsdp+fp32 qwen2.5-0.5b:zero2+fp16
vit_base:zero2+offload vit_base:zero3+offload vit_base:zero3+offload_all vit_base:fsdp+offload_all
experts:single experts:fsdp experts:zero2 resnet:ddp+synchronised vit_base:single+augmented
vit_base:single+streamed vit_base:single+clipped vit_base:single+kept vit_base:single+taught
"""  # by value
KINDS = tuple(KIND_NAMES.split())
RUNS = tuple(f"{kind}+{SHORT}" for kind in KINDS)
AT_ONCE = 3
TINY_RUNS = ("qwen2.5-0.5b:zero3+short", "vit_base:single+lora+short", "resnet:ddp+short")


def run(session: Session) -> None:
    """Run each kind once."""
    train_all(session, session.choose(TINY_RUNS if session.tiny else RUNS), at_once=AT_ONCE)
