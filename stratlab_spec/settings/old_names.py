"""`RENAMED` has names of settings from the previous version: this version still reads them, and logs one note."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import TypeVar

RENAMED = {
    "distil_temperature": "distill_temperature",
    "distil_weight": "distill_alpha",
    "cp_kind": "cp_method",
    "oom_ladder": "oom_fallback",
}
"""Old name -> name."""

Value = TypeVar("Value")
log = logging.getLogger("trainer")


def take_new_names(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings by today's names, of variables, files or a run directory; of both names of one, the new one
    wins.
    """
    old = {name: value for name, value in settings.items() if name in RENAMED}
    if old:
        _say(tuple(sorted(old)))
    return {RENAMED[name]: value for name, value in old.items()} | {
        name: value for name, value in settings.items() if name not in old
    }


@functools.cache
def _say(names: tuple[str, ...]) -> None:
    pairs = ", ".join(f"{name} -> {RENAMED[name]}" for name in names)
    log.warning("old names of settings: %s; the next version does not read them [SL-setting-renamed]", pairs)
