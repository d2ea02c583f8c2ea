"""One self-contained HTML page: opens from disk, in MLflow's sandboxed viewer, on paper; loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


@dataclass(frozen=True)
class Section:
    """A part of a page. `html` comes from this package; a plain `str` is shown as text, escaped."""

    title: str
    html: Markup


def paragraph(content: str | Markup) -> Markup:
    return Markup("<p>{}</p>").format(content)


def subtitle(content: str) -> Markup:
    return Markup("<h3>{}</h3>").format(content)


def details(summary: str, content: Markup) -> Markup:
    """A part that is folded until it is clicked, and unfolded on paper."""
    return Markup("<details><summary>{}</summary>{}</details>").format(summary, content)


def build_page(title: str, origin: str, sections: Sequence[Section]) -> str:
    """The page as text.

    Args:
        title: heading and window title.
        origin: where every number of the page comes from (backend, hardware, steps); shown under the heading.
        sections: in reading order.
    """
    environment = Environment(
        loader=PackageLoader("stratlab.drawing", "."), autoescape=True, undefined=StrictUndefined
    )
    style = Markup(environment.loader.get_source(environment, "page.css")[0])  # type: ignore[union-attr]
    return environment.get_template("page.html").render(
        title=title, origin=origin, sections=sections, style=style
    )
