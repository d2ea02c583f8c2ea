"""A snapshot of an engine written at once, as the thread of a checkpoint writes it."""

from pathlib import Path

from trainer.engine import Engine, Snapshot


def save_state(engine: Engine, folder: Path) -> None:
    write(engine.snapshot(), folder)


def write(snapshot: Snapshot, folder: Path) -> list[str]:
    """The names of all files, on every rank; collective."""
    import torch.distributed as dist

    from trainer.distributed.consensus import run_together

    written = run_together(lambda: snapshot.write(folder), folder)
    parts = [found.part for found in written]
    once = run_together(lambda: snapshot.finish(folder, parts) if dist.get_rank() == 0 else [], folder)
    return sorted({name for found in written for name in found.names} | {*once[0]})
