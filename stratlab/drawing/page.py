"""One self-contained HTML page: opens from disk, in MLflow's sandboxed viewer, on paper; loads nothing.

Its one script sorts tables by a click on a column's head, and lets the keyboard scroll what is wider than the screen;
the page's policy names it by its hash and allows no other.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

EMPTY = Markup("")
SCRIPTS = ("sorting.js", "scrolling.js")


@dataclass(frozen=True)
class Section:
    """A part of a page. `html` comes from this package; a plain `str` is shown as text, escaped.

    `nothing`: why there is nothing to show; such sections are one line at the end of the page.
    """

    title: str
    html: Markup = EMPTY
    nothing: str = ""


@dataclass(frozen=True)
class Tile:
    """An answer to be read in passing: what was asked, the answer (None = there is none), why, and what follows."""

    question: str
    answer: str | None
    why: str
    means: str = ""


def paragraph(content: str | Markup) -> Markup:
    return Markup("<p>{}</p>").format(content)


def loud(sentence: str) -> Markup:
    """A sentence of the banner that nobody must miss."""
    return Markup('<strong class="loud">{}</strong>').format(sentence)


def subtitle(content: str) -> Markup:
    return Markup("<h3>{}</h3>").format(content)


def details(summary: str, content: Markup) -> Markup:
    """A part that is folded until it is clicked, and unfolded on paper."""
    return Markup("<details><summary>{}</summary>{}</details>").format(summary, content)


def tile_row(tiles: Sequence[Tile]) -> Markup:
    """Tiles side by side, as many in a row as there is room for."""
    tile = Markup(
        '<div class="tile{}"><div class="asked">{}</div><div class="answer">{}</div><div>{}</div>{}</div>'
    )
    parts = [
        tile.format(
            "" if each.answer else " open",
            each.question,
            each.answer or "no winner",
            each.why,
            Markup('<div class="means">{}</div>').format(each.means) if each.means else EMPTY,
        )
        for each in tiles
    ]
    return Markup('<div class="tiles">{}</div>').format(Markup("").join(parts))


def build_page(
    title: str,
    origin: str,
    sections: Sequence[Section],
    banner: Sequence[str | Markup] = (),
    links: Markup = EMPTY,
) -> str:
    """The page as text.

    Args:
        title: heading and window title.
        origin: where every number of the page comes from (backend, hardware, steps); shown under the heading.
        sections: in reading order.
        banner: what the numbers of the page can and cannot say, once for all of them; a sentence each.
        links: where else to look, below the heading.
    """
    environment = Environment(
        loader=PackageLoader("stratlab.drawing", "."), autoescape=True, undefined=StrictUndefined
    )
    style = Markup(environment.loader.get_source(environment, "page.css")[0])  # type: ignore[union-attr]
    script = Markup("").join(
        Markup(environment.loader.get_source(environment, file)[0])  # type: ignore[union-attr]
        for file in SCRIPTS
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        title=title,
        origin=origin,
        banner=banner,
        links=links,
        sections=[section for section in sections if not section.nothing],
        silent=[section for section in sections if section.nothing],
        style=style,
        script=script,
        digest=digest,
    )
