"""The three schedules of a pipeline as a picture, in the order in which torch's classes let a rank work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from stratlab.drawing.canvas import rect, text
from stratlab.drawing.page import build_picture
from stratlab_spec.models.decoder import VIRTUAL_STAGES

RANKS, MICRO_BATCHES = 4, 8
BACKWARD = 2.0  # a backward pass takes as long as two forward passes
WIDTH, LEFT, UNIT = 440.0, 46.0, 11.5
ROW, HEAD = 20.0, 40.0
FORWARD_FILLS, BACKWARD_FILLS = (0, 8), (1, 9)  # of the first and the second stage of a rank
LEAST_WIDTH = 9.0  # of a cell with a number


class Cell(NamedTuple):
    """One pass of one micro-batch through a stage; times in forward passes of a whole rank."""

    rank: int
    stage: int
    micro_batch: int
    is_forward: bool
    begin: float
    end: float


def draw_schedules() -> str:
    """The SVG file: a block for each schedule, a line for each rank."""
    parts, y = [*_draw_legend()], 52.0
    for name in VIRTUAL_STAGES:
        cells = arrange(name)
        parts.append(text(LEFT, y, _describe(name, cells)))
        for rank in range(RANKS):
            parts.append(text(LEFT - 6, y + 10 + ROW * rank + 13, f"rank {rank}", "end", "n"))
        for rank in range(RANKS):
            parts += _draw_rank([cell for cell in cells if cell.rank == rank], y + 10 + ROW * rank)
        y += HEAD + ROW * RANKS
    return build_picture(WIDTH, y - 14, parts, "Three schedules of a pipeline")


def arrange(name: str) -> list[Cell]:
    """Each pass as early as its rank is free and its input is there."""
    orders = list_orders(name)
    virtual = VIRTUAL_STAGES[name]
    last = RANKS * virtual - 1
    done: dict[tuple[int, int, bool], Cell] = {}
    free, waiting = [0.0] * RANKS, {rank: [*order] for rank, order in orders.items()}
    while any(waiting.values()):
        for rank, order in waiting.items():
            while order:
                stage, micro_batch, is_forward = order[0]
                if is_forward:
                    needs = (stage - 1, micro_batch, True) if stage else None
                else:
                    needs = (stage + 1, micro_batch, False) if stage < last else (stage, micro_batch, True)
                if needs and needs not in done:
                    break
                begin = max(free[rank], done[needs].end if needs else 0.0)
                free[rank] = begin + (1.0 if is_forward else BACKWARD) / virtual
                done[order.pop(0)] = Cell(rank, stage, micro_batch, is_forward, begin, free[rank])
    return list(done.values())


def list_orders(name: str) -> Mapping[int, list[tuple[int, int, bool]]]:
    """Of each rank (stage, micro-batch, whether forward): the start-up, then a forward and a backward pass in turn."""
    virtual = VIRTUAL_STAGES[name]
    passes = MICRO_BATCHES * virtual
    orders = {}
    for rank in range(RANKS):
        begun = RANKS - 1 - rank if virtual == 1 else (virtual - 1) * RANKS + 2 * (RANKS - 1 - rank)
        begun = passes if name == "gpipe" else min(begun, passes)
        forward = [(*_find_place(number, rank, virtual), True) for number in range(passes)]
        backward = [(*_find_place(number, rank, virtual, reverse=True), False) for number in range(passes)]
        turns = zip(forward[begun:], backward, strict=False)
        rest = backward[passes - begun :]
        orders[rank] = [*forward[:begun], *(each for turn in turns for each in turn), *rest]
    return orders


def _find_place(number: int, rank: int, virtual: int, *, reverse: bool = False) -> tuple[int, int]:
    """(stage, micro-batch) of a rank's pass: as many micro-batches as there are ranks, then its next stage."""
    turn, place = divmod(number, RANKS)
    lap, local = divmod(turn, virtual)
    return (virtual - 1 - local if reverse else local) * RANKS + rank, lap * RANKS + place


def find_idle_pct(cells: list[Cell]) -> float:
    """Of the time from the first pass to the last, over all ranks."""
    whole = RANKS * max(cell.end for cell in cells)
    return 100 * (1 - sum(cell.end - cell.begin for cell in cells) / whole)


def count_kept(cells: list[Cell]) -> float:
    """Micro-batches whose activations the fullest rank holds at once, counted in layers of a whole rank."""
    virtual = len({cell.stage for cell in cells}) / RANKS
    most = 0
    for rank in range(RANKS):
        mine = [cell for cell in cells if cell.rank == rank]
        for at in (cell.begin for cell in mine):
            begun = sum(cell.is_forward and cell.begin <= at for cell in mine)
            most = max(most, begun - sum(not cell.is_forward and cell.end <= at for cell in mine))
    return most / virtual


def _describe(name: str, cells: list[Cell]) -> str:
    return f"{name}: {find_idle_pct(cells):.0f} % idle, activations of {count_kept(cells):g} micro-batches"


def _draw_legend() -> Iterator[Markup]:
    yield text(
        10,
        16,
        f"{RANKS} ranks, {MICRO_BATCHES} micro-batches (0 to {MICRO_BATCHES - 1}), equal stages",
        css="n",
    )
    keys = {"forward": 0, "backward": 1, "lighter: second stage of the rank": 8}
    x = 10.0
    for name, fill in keys.items():
        yield rect(x, 23, 12, 11, f"f{fill}")
        yield text(x + 17, 33, name, css="n")
        x += 32 + len(name) * 6.6


def _draw_rank(cells: Sequence[Cell], y: float) -> Iterator[Markup]:
    """A box for each pass; the numbers of one ink are one element, which keeps the file small."""
    numbers: dict[str, list[tuple[float, int]]] = {}
    for cell in cells:
        fill = (FORWARD_FILLS if cell.is_forward else BACKWARD_FILLS)[cell.stage // RANKS]
        x, width = LEFT + UNIT * cell.begin, UNIT * (cell.end - cell.begin) - 0.8
        yield rect(x, y, width, ROW - 3, f"f{fill}")
        if width > LEAST_WIDTH:
            ink = "n onfill" if cell.stage < RANKS else "n strong"
            numbers.setdefault(ink, []).append((x + width / 2, cell.micro_batch))
    for ink, placed in numbers.items():
        places = " ".join(f"{x:.1f}" for x, _ in placed)
        digits = "".join(str(number) for _, number in placed)
        drawn = Markup('<text x="{}" y="{:.1f}" text-anchor="middle" class="{}">{}</text>')
        yield drawn.format(places, y + 13, ink, digits)
