"""`python -m trainer` on this card: each model on its own, and the strategies that matter most.

One GPU is one rank, so a strategy's collectives do not take time here. The runs prove that its code works on the device
and that the loss falls, and measure its bookkeeping against `single`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.gpu.models import EXTRAS, Model, Settings, build_models, resolve_run
from benchmarks.gpu.own_run import train
from benchmarks.gpu.session import Session

RUNS = (  # by value; `strategies` has the others
    *("vit_base:single", "qwen2.5-3b:single", "qwen2.5-3b:fsdp", "vit_base:zero2", "vit_huge:single"),
    *("vit_base:ddp", "vit_base:fsdp", "vit_base:zero3", "vit_huge:fsdp"),
)
TINY_RUNS = ("vit_base:ddp", "vit_huge:single", "qwen2.5-3b:fsdp")
LONGEST_S = 240.0
SMALLER = "qwen2.5-1.5b"


def run(session: Session) -> None:
    """Train the runs of part 1."""
    train_all(session, session.choose(TINY_RUNS if session.tiny else RUNS))


def train_all(session: Session, names: Sequence[str], at_once: int = 1) -> None:
    """Train each run for which time is left; repeat a run that does not fit into memory with smaller sizes.

    Args:
        at_once: runs in parallel, if their times do not matter.
    """
    models = build_models(session)
    with ThreadPoolExecutor(at_once) as threads:
        for done in [threads.submit(_train_one, session, name, models) for name in names]:
            done.result()


def _train_one(session: Session, name: str, models: Mapping[str, Model]) -> None:
    model, settings, needs_s = resolve_run(name, models)
    if _train(session, name, model, settings, needs_s) != "out_of_memory":
        return
    # the requested and the fitting size are both results
    smaller = settings | EXTRAS["checkpointing"]
    if _train(session, f"{name}+checkpointing", model, smaller, needs_s) == "out_of_memory":
        settings = {**models[SMALLER].settings, "STRATEGY": settings["STRATEGY"]}
        other = f"{SMALLER}:{settings['STRATEGY']}"
        _train(session, other, SMALLER, settings, models[SMALLER].needs_s)


def _train(session: Session, name: str, model: str, settings: Settings, needs_s: float) -> str:
    if not session.has_time(needs_s):
        session.skip(name, needs_s)
        return "skipped"
    facts = train(session, name, settings, seconds=session.within(LONGEST_S, 2))
    status: str = facts.pop("status")
    session.record(name, status, model=model, strategy=settings["STRATEGY"], **facts)
    return status
