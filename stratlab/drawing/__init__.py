"""Charts, tables and pages as plain HTML and SVG: no network, no plotting library, one script that sorts tables.

Every function returns `Markup`: text from outside (names of kernels, runs, classes) is already escaped in it.
"""

# ruff: noqa: F401  (what the package offers)
from stratlab.drawing.canvas import HALF, line_chart, note
from stratlab.drawing.charts import heat_map, histogram, scatter, stacked_bars, waterfall
from stratlab.drawing.page import (
    Column,
    Columns,
    Section,
    badge,
    build_page,
    details,
    drop_file_links,
    escape_markdown,
    html_table,
    link,
    link_file,
    link_ranks,
    loud,
    markdown_table,
    only_here,
    paragraph,
    read_parts,
    set_way_back,
    subtitle,
    tile_row,
    way_back,
)
