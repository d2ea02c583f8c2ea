"""Python's collector, which walks every object of the process each time it looks for circles of garbage.

A trainer's process has a million of them: the walk took a quarter of a second (AMD EPYC, 2 cores), on each rank at a
time of its own, and the others wait for it (torchtitan collects at set steps for that reason).
"""

from __future__ import annotations

import gc
from typing import Any


def set_aside() -> None:
    """What is there now stays, and no later walk looks at it: behind the first step, when all that a run is made of is
    there. Objects are freed as before where nobody refers to them."""
    gc.collect()
    gc.freeze()


def list_objects() -> list[Any]:
    """Every object that the collector knows of, those that were set aside too."""
    aside = gc.get_freeze_count() > 0
    gc.unfreeze()
    found = gc.get_objects()
    if aside:
        gc.freeze()
    return found
