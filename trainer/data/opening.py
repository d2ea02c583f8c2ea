"""Opens pictures before anything depends on them, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from trainer.data.stored_pictures import StoredPictures, Unreadable

CHUNK = 512


def say_nothing(_: int) -> None:
    """Nobody waits for the progress."""


def find_unreadable(
    pictures: StoredPictures, report: Callable[[int], None] = say_nothing
) -> list[Unreadable]:
    """Those that cannot be decoded, in their order.

    Args:
        report: is given how many pictures have been opened, now and then.
    """

    def look(index: int) -> Unreadable | None:
        try:
            pictures.open(index)
        except Unreadable as failure:
            return failure
        return None

    found: list[Unreadable] = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for start in range(0, len(pictures), CHUNK):
            some = range(start, min(start + CHUNK, len(pictures)))
            found += [failure for failure in pool.map(look, some) if failure]
            report(some.stop)
    return found
