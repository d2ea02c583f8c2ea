"""Steps over the rate of the network, both logarithmic: bands as predicted, dots as measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from markupsafe import Markup

from experiments.network.judging import Cell, read_cells
from stratlab.drawing.canvas import Scale, dot, legend, line, line_style, text
from stratlab.drawing.page import build_picture

KEPT = Path(__file__).parent / "result" / "result.json"
WIDTH, HEIGHT, LEFT = 440.0, 330.0, 56.0


def draw_network() -> str:
    """Return the SVG file of the kept result."""
    label = "Time of a step over the rate of the network"
    return build_picture(WIDTH, HEIGHT + 64, _draw(read_cells(KEPT)), label)


def _draw(cells: Sequence[Cell]) -> Iterator[Markup]:
    rates = [cell.rate_mbit for cell in cells]
    shown = [one for cell in cells for bands in cell.predicted.values() for one in bands[1:]]
    shown += [ms for cell in cells for values in cell.measured.values() for ms in values]
    names = list(cells[0].predicted)
    keys, top = legend(names, LEFT, lines=True, width=WIDTH)
    yield keys
    across = Scale(min(rates), max(rates), LEFT + 14, WIDTH - 20, log=True)
    down = Scale(min(shown) / 1.1, max(shown) * 1.1, top + HEIGHT - 40, top + 24, log=True)
    yield text(6, top + 14, "ms per step; lines: predicted, with the band; dots: measured", css="n")
    for rate in rates:
        yield line(across(rate), down(down.low), across(rate), down(down.high), "g")
        yield text(across(rate), down(down.low) + 15, f"{rate:g}", "middle", "n")
    yield text(WIDTH / 2, down(down.low) + 30, "Mbit/s between the nodes", "middle", "n")
    for value in down.ticks():
        yield line(LEFT, down(value), WIDTH - 12, down(value), "g")
        yield text(LEFT - 6, down(value) + 4, f"{value:g}", "end", "n")
    for place, name in enumerate(names):
        yield from _draw_strategy(cells, name, place, across, down)


def _draw_strategy(
    cells: Sequence[Cell], name: str, place: int, across: Scale, down: Scale
) -> Iterator[Markup]:
    path = "L".join(f"{across(cell.rate_mbit):.1f} {down(cell.predicted[name].ms):.1f}" for cell in cells)
    yield Markup('<path d="M{}" class="{}"/>').format(path, line_style(place))
    for cell in cells:
        x = across(cell.rate_mbit) + 4 * (place - 2)
        band, values = cell.predicted[name], cell.measured[name]
        yield line(x, down(band.low_ms), x, down(band.high_ms), line_style(place))
        middle = median(values)
        yield dot(x, down(middle), 3, f"f{place}", f"{name}: {middle:.0f} ms at {cell.rate_mbit:g} Mbit/s")
