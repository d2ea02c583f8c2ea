"""Rungs of the ladder that a run has climbed: rungs.json, and what the ranks are told of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.record.run_directory import RunDirectory

VARIABLE = "STRATLAB_RUNGS"
"""In the ranks' environment: the rungs that they stand on, as JSON."""
RUNGS = "rungs"
"""Their place in `resolved` of config.json."""

Settings = dict[str, Any]
Rung = dict[str, Any]
"""rung (its number), settings, instead_of (what these were before), passed_over [{settings, reason}], step, t."""


def read_rungs(folder: RunDirectory) -> list[Rung]:
    """Those that any pod of the run has climbed."""
    try:
        found = json.loads(folder.rungs.read_bytes())
    except (FileNotFoundError, ValueError):
        return []
    return found if isinstance(found, list) else []


def read_own_rungs(env: Mapping[str, str]) -> list[Rung]:
    """Those that this rank was started on."""
    found: list[Rung] = json.loads(env.get(VARIABLE, "[]"))
    return found


def find_asked(rungs: Sequence[Rung]) -> Settings:
    """What the release says of the settings that rungs have changed."""
    asked: Settings = {}
    for rung in reversed(rungs):
        asked |= rung["instead_of"]
    return asked


def describe_rung(rung: Rung) -> str:
    """`micro_batch_size 8 instead of 16`."""
    before = rung["instead_of"]
    return ", ".join(f"{name} {value} instead of {before[name]}" for name, value in rung["settings"].items())
