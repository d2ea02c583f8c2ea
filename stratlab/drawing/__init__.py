"""Charts, tables and pages as plain HTML and SVG: no network, no plotting library, one script that sorts tables.

Every function returns `Markup`: text from outside (names of kernels, runs, classes) is already escaped in it.
"""

from stratlab.drawing.bars import stacked_bars
from stratlab.drawing.canvas import note
from stratlab.drawing.heat_map import heat_map
from stratlab.drawing.histogram import histogram
from stratlab.drawing.links import (
    drop_file_links,
    link,
    link_file,
    link_ranks,
    only_here,
    set_way_back,
    way_back,
)
from stratlab.drawing.markdown_table import escape_markdown, markdown_table
from stratlab.drawing.page import Section, Tile, build_page, details, loud, paragraph, subtitle, tile_row
from stratlab.drawing.scatter import scatter
from stratlab.drawing.svg import line_chart, strips
from stratlab.drawing.table import Column, badge, html_table

__all__ = [
    "Column",
    "Section",
    "Tile",
    "badge",
    "build_page",
    "details",
    "drop_file_links",
    "escape_markdown",
    "heat_map",
    "histogram",
    "html_table",
    "line_chart",
    "link",
    "link_file",
    "link_ranks",
    "loud",
    "markdown_table",
    "note",
    "only_here",
    "paragraph",
    "scatter",
    "set_way_back",
    "stacked_bars",
    "strips",
    "subtitle",
    "tile_row",
    "way_back",
]
