"""What each strategy shards over four ranks, and the collectives of its step: a picture of the table of strategies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from markupsafe import Markup

from stratlab.drawing.canvas import line, rect, text
from stratlab.drawing.page import build_picture
from stratlab_spec.strategies import KINDS, PHASES, STRATEGIES, StrategyRow

WIDTH = 440.0
RANKS, PER_NODE = 4, 2
CELL = 9.0
NAMES, GRIDS, PILLS = 10.0, (78.0, 134.0, 190.0), (244.0, 304.0, 390.0)  # left edges of the columns
TOP, PITCH = 84.0, 50.0
SHORT = {"all-gather": ("AG", 5), "reduce-scatter": ("RS", 3), "all-reduce": ("AR", 4)}
PILL = 26.0


def draw_strategies() -> str:
    """The SVG file: a line for each strategy that shards by data."""
    rows = {name: row for name, row in STRATEGIES.items() if row.wire or row.by_nodes}
    parts = [*_draw_head()]
    for place, (name, row) in enumerate(rows.items()):
        y = TOP + PITCH * place
        parts += [line(NAMES, y - 6, WIDTH - 10, y - 6, "g"), text(NAMES, y + 22, name)]
        for left, (kind, fill) in zip(GRIDS, zip(KINDS, range(3), strict=True), strict=True):
            parts += _draw_grid(row, kind, left, y, fill, alone=name == "single")
        for left, phase in zip(PILLS, PHASES, strict=True):
            parts += _draw_pills(row.collectives.get(phase, ()), left, y)
    return build_picture(WIDTH, TOP + PITCH * len(rows), parts, "What each strategy shards and sends")


def _draw_head() -> Iterator[Markup]:
    yield text(NAMES, 16, f"state of {RANKS} ranks, a line each;", css="n")
    yield text(NAMES, 31, "filled: the part that a rank holds", css="n")
    yield text(NAMES, 46, "lighter: a second copy per node", css="n")
    for left, kind in zip(GRIDS, KINDS, strict=True):
        yield text(left, 70, kind.removesuffix("eters").removesuffix("ients").removesuffix("izer"), css="t")
    for left, phase in zip(PILLS, PHASES, strict=True):
        yield text(left, 70, phase, css="t")
    for place, (name, (short, fill)) in enumerate(SHORT.items()):
        y = 14 + 15 * place
        yield rect(302, y - 9, PILL, 12, f"f{fill}")
        yield text(302 + PILL / 2, y, short, "middle", "n onfill")
        yield text(334, y, name, css="n")


def _draw_grid(
    row: StrategyRow, kind: str, left: float, top: float, fill: int, *, alone: bool
) -> Iterator[Markup]:
    """A line per rank, a column per part of the state; lighter: the copy that a node holds once more."""
    shards = PER_NODE if len(row.axes) > 1 else RANKS
    for rank in range(1 if alone else RANKS):
        looks = [
            _look(row, kind, rank, column * shards // RANKS == rank % shards, column)
            for column in range(RANKS)
        ]
        for look, columns in itertools.groupby(range(RANKS), looks.__getitem__):
            first, *rest = columns
            css = "h0" if look is None else f"f{fill + look}"
            x, width = left + CELL * first, CELL * (1 + len(rest))
            yield rect(x, top + CELL * rank, width - 1, CELL - 1, css)


def _look(row: StrategyRow, kind: str, rank: int, is_own: bool, column: int) -> int | None:
    """Of a part of the state on a rank: 0 = held, 8 = held once more for the node, None = not there."""
    if is_own or kind not in row.holds.divided:
        return 0
    again = row.holds.again_in_node and kind == KINDS[0]
    return 8 if again and column * PER_NODE // RANKS == rank % PER_NODE else None


def _draw_pills(collectives: tuple[str, ...], left: float, top: float) -> Iterator[Markup]:
    if not collectives:
        yield text(left + 8, top + 22, "–", css="n")
    for place, said in enumerate(collectives):
        short, fill = SHORT[said.partition(" ")[0]]
        x = left + (PILL + 2) * place
        yield rect(x, top + 6, PILL, 16, f"f{fill}", said)
        yield text(x + PILL / 2, top + 18, short, "middle", "n onfill")
    places = [said.partition(" ")[2] for said in collectives]
    for where in dict.fromkeys(filter(None, places)):
        middle = places.index(where) + places.count(where) / 2
        yield text(left + (PILL + 2) * middle - 1, top + 35, where, "middle", "n")
