"""Settings under the names that the version before gave them: this version reads those too, and says so once."""

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
    """The settings by today's names, of variables, files or a run directory; of both names of one, the new one wins."""
    old = {name: value for name, value in settings.items() if name in RENAMED}
    for name in old:
        _say(name)
    return {RENAMED[name]: value for name, value in old.items()} | {
        name: value for name, value in settings.items() if name not in old
    }


@functools.cache
def _say(name: str) -> None:
    log.warning(
        "%s: is called %s now; the next version does not read the old name [SL-setting-renamed]",
        name,
        RENAMED[name],
    )
