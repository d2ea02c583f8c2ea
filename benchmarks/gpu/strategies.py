"""`python -m trainer` under the strategies that `project` leaves out, and with compiled blocks."""

from __future__ import annotations

import sys

from benchmarks.gpu.models import build_models, resolve_run
from benchmarks.gpu.own_run import train
from benchmarks.gpu.project import LONGEST_S, train_all
from benchmarks.gpu.session import Session

RUNS = (  # by value
    *("qwen2.5-3b:single+compile", "vit_base:single+compile", "qwen2.5-3b:zero3", "vit_huge:zero2"),
    *("vit_huge:single+compile", "qwen2.5-3b:zero2", "vit_huge:ddp", "vit_huge:zero3", "qwen2.5-3b:ddp"),
    *("qwen2.5-3b:zero1", "vit_huge:zero1", "qwen2.5-3b:nd", "vit_huge:hsdp"),
    *("qwen2.5-3b:fsdp+compile", "vit_huge:fsdp+compile", "vit_base:ddp+compile", "vit_base:fsdp+compile"),
    *("vit_base:zero2+compile", "qwen2.5-3b:ddp+compile"),
)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
TINY_RUNS = ("vit_base:zero2", "qwen2.5-3b:zero3")
UNITS = "qwen2.5-0.5b:zero3"
UNITS_NEED_S = 45.0
WORKERS = {"by module": "trainer.worker", "by block": "benchmarks.gpu.units_worker"}
"""Unit that ZeRO-3 gathers at once: DeepSpeed's own choice, and FSDP's."""


def run(session: Session) -> None:
    """Run part 2, and compare ZeRO-3's units by their step."""
    train_all(session, session.choose(TINY_RUNS if session.tiny else RUNS))
    if not session.runs:
        compare_units(session)


def compare_units(session: Session) -> None:
    """Train one model with both units, without the launcher, with its tokens from an earlier run or a new one."""
    if not session.has_time(2 * UNITS_NEED_S):
        return session.skip(UNITS, 2 * UNITS_NEED_S)
    if not session.tiny:
        train_all(session, (f"{UNITS}+short",))
    model, settings, _ = resolve_run(UNITS, build_models(session))
    for name, worker in WORKERS.items():
        command = [sys.executable, *TORCHRUN, "-m", worker]
        own, run_name = settings | {"PROFILE_STEPS": "0"}, f"units-{worker.rpartition('.')[2]}"
        facts = train(session, run_name, own, seconds=session.within(LONGEST_S), command=command)
        session.record(f"{UNITS} {name}", facts.pop("status"), model=model, strategy="zero3", **facts)
