"""A drawing as a file of its own, for pages that show it as an image: it carries its colours, light and dark."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from markupsafe import Markup

from stratlab.drawing.canvas import rect

PAGE_CSS = Path(__file__).with_name("page.css")
COLOURS = re.compile(
    r"^:root \{.*?\n\}\n|^@media \(prefers-color-scheme: dark\) \{.*?\n\}\n", re.MULTILINE | re.DOTALL
)
CLASSES = re.compile(r"(?:text|line|path)?\.([a-z]+\d*)(?:, [^{]+)? \{[^}]*\}")
GROUND = "svg{font:12px system-ui,'DejaVu Sans',sans-serif}.paper{fill:var(--paper)}"


def build_picture(width: float, height: float, parts: Iterable[Markup], label: str) -> str:
    """A whole SVG file on a ground of its own, so that it is readable on any page.

    Args:
        label: the alternative text.
    """
    body = Markup("").join([rect(0, 0, width, height, "paper"), *parts])
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" '
        'aria-label="{2}">\n<style>{3}</style>\n{4}\n</svg>\n'
    ).format(f"{width:g}", f"{height:g}", label, _style(body), Markup(str(body).replace("><", ">\n<")))


def _style(body: Markup) -> Markup:
    """Return the pages' colours and classes that the drawing uses."""
    css = PAGE_CSS.read_text()
    used = {name for names in re.findall(r'class="([^"]+)"', body) for name in names.split()}
    lines = [found[0] for found in CLASSES.finditer(css) if _names(found[0]) & used]
    return Markup("\n".join(["".join(COLOURS.findall(css)), GROUND, *lines]))


def _names(rule: str) -> set[str]:
    return set(re.findall(r"\.([a-z]+\d*)", rule.partition("{")[0]))
