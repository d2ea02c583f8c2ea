"""DeepSpeed's files, written so that a full volume of one rank does not leave the others waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def late_failures(engine: Any) -> Iterator[None]:
    """Raises the first failure to write a file when the block is left, not in its middle.

    Between the files DeepSpeed waits for all ranks: one that left there would leave the others waiting for it. And a
    folder that cannot be made it only logs, so that the volume is full where torch says "does not exist" (0.19.8).
    """
    writer, failures = engine.checkpoint_engine, list[Exception]()

    def keep(write: Callable[..., Any]) -> Callable[..., Any]:
        def kept(*arguments: Any, **options: Any) -> Any:
            try:
                return write(*arguments, **options)
            except Exception as failure:
                failures.append(failure)
                return None

        return kept

    guarded = {(writer, "save"): writer.save, (writer, "makedirs"): writer.makedirs}
    guarded[engine, "_copy_recovery_script"] = engine._copy_recovery_script
    try:
        for (owner, name), write in guarded.items():
            setattr(owner, name, keep(write))
        yield
    finally:
        for owner, name in guarded:
            delattr(owner, name)  # the class's own again
    if failures:
        raise failures[0]
