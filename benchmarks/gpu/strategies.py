"""`python -m trainer` under the strategies that `project` leaves out, and with compiled blocks."""

from __future__ import annotations

from benchmarks.gpu.project import train_all
from benchmarks.gpu.session import Session

RUNS = (  # by value
    *("qwen2.5-3b:single+compile", "vit_base:single+compile", "qwen2.5-3b:zero3", "vit_huge:zero2"),
    *("vit_huge:single+compile", "qwen2.5-3b:zero2", "vit_huge:ddp", "vit_huge:zero3", "qwen2.5-3b:ddp"),
)
TINY_RUNS = ("vit_base:zero2", "qwen2.5-3b:zero3")


def run(session: Session) -> None:
    """The runs of part 2."""
    train_all(session, TINY_RUNS if session.tiny else RUNS)
