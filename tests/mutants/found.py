"""What became of each slip, kept on disk; and whether all of them together are caught well enough."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.mutants.slip import Slip
from tests.tiers import CHANGE, FAST

Outcome = Literal["caught", "survived", "broken"]
CAUGHT_PCT, CHANGE_PCT, FAST_PCT = 98.0, 95.0, 85.0
"""At least so many of the slips that a user can see are caught: by all tests, by `make test`, by `make test-fast`."""


@dataclass(frozen=True)
class Found:
    """`test`: the first one that saw it, and its `tier`; empty where none did. `key` changes with the slip, its file,
    the files of its tests and what those import of tests/."""

    outcome: Outcome
    tier: str
    test: str
    key: str
    seconds: float


@dataclass(frozen=True)
class Count:
    """Slips by what became of them; an `equivalent` one changes nothing that a user can see and was not caught."""

    planted: int
    caught: int
    caught_by_fast: int
    caught_by_change: int
    equivalent: int
    survived: tuple[str, ...]

    @property
    def caught_pct(self) -> float:
        """Of those that a user can see."""
        return 100 * self.caught / max(1, self.planted - self.equivalent)

    @property
    def fast_pct(self) -> float:
        """By tests of `make test-fast`."""
        return 100 * self.caught_by_fast / max(1, self.planted - self.equivalent)

    @property
    def change_pct(self) -> float:
        """By tests of `make test`, which runs the fast ones too."""
        return 100 * self.caught_by_change / max(1, self.planted - self.equivalent)

    @property
    def is_enough(self) -> bool:
        """Whether all three bars are met."""
        return self.caught_pct >= CAUGHT_PCT and self.change_pct >= CHANGE_PCT and self.fast_pct >= FAST_PCT


def count_slips(slips: Sequence[Slip], found: dict[str, Found]) -> Count:
    """What became of these slips; all of them have been planted."""
    caught = [slip for slip in slips if found[slip.name].outcome == "caught"]
    lost = [slip for slip in slips if found[slip.name].outcome != "caught"]
    return Count(
        planted=len(slips),
        caught=len(caught),
        caught_by_fast=sum(found[slip.name].tier == FAST.name for slip in caught),
        caught_by_change=sum(found[slip.name].tier in (FAST.name, CHANGE.name) for slip in caught),
        equivalent=sum(bool(slip.equivalent) for slip in lost),
        survived=tuple(slip.name for slip in lost if not slip.equivalent),
    )


def read_found(path: Path) -> dict[str, Found]:
    """The results of earlier runs by slip."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text())["slips"]
    return {name: Found(**row) for name, row in rows.items()}


def write_found(found: dict[str, Found], count: Count | None, path: Path) -> None:
    """All of them, in one go; `count` is None unless each of the table has been planted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp")
    rows = {name: dataclasses.asdict(row) for name, row in found.items()}
    whole = {"count": count and dataclasses.asdict(count), "slips": rows}
    aside.write_text(json.dumps(whole, indent=1))
    os.replace(aside, path)
