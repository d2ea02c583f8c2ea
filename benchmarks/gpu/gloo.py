"""Two ranks on one device over gloo against one process: the strategies' real collectives, on device tensors.

The losses have to be equal; the times have no meaning. A collective that gloo lacks on a device does not imply
anything about nccl. No pipeline is among them: gloo's messages between two ranks do not take a device's memory (torch
2.11).
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.gpu.models import ARITHMETIC
from benchmarks.gpu.own_run import compare_losses, train
from benchmarks.gpu.session import Session

SIZES = {"GLOBAL_BATCH_SIZE": "16", "MICRO_BATCH_SIZE": "4"}
COMMON = {"PRECISION": "fp32", "PROFILE_STEPS": "0", "STEPS": "8", **SIZES}
VIT = {**COMMON, "MODEL": "vit_tiny", "DATASET": "synthetic", "TRAIN_SAMPLES": "128"}
QWEN = {**COMMON, **ARITHMETIC, "MODEL": "qwen_tiny", "SEQ_LEN": "192", "TRAIN_SAMPLES": "400"}
MODELS = {
    "vit": VIT,
    "qwen": QWEN,
    "experts": QWEN | {"MODEL": "qwen_moe_tiny"},
    "resnet": VIT | {"MODEL": "resnet", "IMAGE_SIZE": "32", "LR": "1e-4", "GLOBAL_BATCH_SIZE": "8"},
}
ALONE = {"resnet": {"MICRO_BATCH_SIZE": "8"}}
"""One process holds two ranks' samples at once, because batch norm covers all of them."""
GIVEN = {"STRATEGY": "nd", "LAYOUT": "given"}
LAYOUTS = {
    "nd tp": GIVEN | {"TP": "2"},
    "nd cp": GIVEN | {"CP": "2"},
    "nd cp allgather": GIVEN | {"CP": "2", "CP_METHOD": "allgather"},
    "nd ep": GIVEN | {"DP_SHARD": "2", "EP": "2"},
    "ddp synchronised": {"STRATEGY": "ddp", "BATCH_NORM": "synchronised"},
}
RUNS = (  # by value
    *("resnet:ddp synchronised", "vit:zeropp", "experts:fsdp", "qwen:nd cp allgather"),
    *("experts:nd ep", "qwen:nd cp"),
    *("vit:ddp", "vit:fsdp", "vit:zero2", "qwen:fsdp", "qwen:nd tp", "vit:zero3", "qwen:ddp", "qwen:zero2"),
    "vit:zero1",
)
TINY_RUNS = ("vit:zero2",)
NEEDS_S, LONGEST_S = 12.0, 60.0
TWO_RANKS = [
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    *("-m", "benchmarks.gpu.gloo_worker"),
]


def run(session: Session) -> None:
    """Run one process of a model before its first two ranks."""
    alone: dict[str, dict[str, Any]] = {}
    for name in TINY_RUNS if session.tiny else RUNS:
        model, strategy = name.split(":")
        if model not in alone:
            if not session.has_time(NEEDS_S):
                session.skip(f"{model}:single", NEEDS_S)
                continue
            alone[model] = _train(
                session, f"{model}:single", MODELS[model] | {"STRATEGY": "single"} | ALONE.get(model, {})
            )
        if not session.has_time(NEEDS_S):
            session.skip(f"{name} x 2", NEEDS_S)
            continue
        settings = MODELS[model] | LAYOUTS.get(strategy, {"STRATEGY": strategy})
        _train(session, f"{name} x 2", settings, alone[model], TWO_RANKS)


def _train(
    session: Session,
    name: str,
    settings: dict[str, str],
    alone: dict[str, Any] | None = None,
    command: list[str] | None = None,
) -> dict[str, Any]:
    seconds = session.within(LONGEST_S)
    facts = train(session, f"gloo-{name.replace(' ', '')}", settings, seconds=seconds, command=command or ())
    facts.pop("falls", None)  # too few steps to judge
    status = facts.pop("status")
    if alone and status == "done":
        facts |= compare_losses(facts, alone)
    session.record(name, status, **facts)
    return facts
