"""The tiles of the verdict: who is best in what; all that nobody is best in is one tile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from stratlab.compare.judging.winners import NAMES, NO_INTERVAL, ON_CPU
from stratlab.drawing import Tile, tile_row

NOT_RANKED = "times of a CPU are not ranked"


def build_tiles(found: Mapping[str, Any], means: str = "") -> Markup:
    """A tile for each winner, and one for all questions without.

    Args:
        found: winners and winner_reasons, of the report or of one of its groups.
        means: what the numbers can say where nobody wins.
    """
    winners, reasons = found["winners"], found["winner_reasons"]
    tiles = [Tile(NAMES[name], run, shorten_reason(reasons[name])) for name, run in winners.items() if run]
    open_questions: dict[str, list[str]] = {}
    for name, run in winners.items():
        if not run:
            open_questions.setdefault(shorten_reason(reasons[name]), []).append(NAMES[name])
    if open_questions:
        tiles.append(_say_open(open_questions, means))
    return tile_row(tiles)


def _say_open(questions: Mapping[str, list[str]], means: str) -> Tile:
    """`questions`: reason -> what nobody is best in because of it."""
    asked = [name for names in questions.values() for name in names]
    if len(questions) == 1:
        return Tile(", ".join(asked), None, next(iter(questions)), means)
    why = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in questions.items())
    return Tile(f"{len(asked)} questions", None, why, means)


def shorten_reason(reason: str) -> str:
    """Without what the banner says of all numbers."""
    return reason.replace(NO_INTERVAL, "").replace(ON_CPU, NOT_RANKED)
