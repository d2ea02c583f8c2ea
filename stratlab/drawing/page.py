"""One self-contained HTML page: opens from disk, in MLflow's sandboxed viewer, on paper; loads nothing.

Its one script sorts tables by a click on a column's head, lets the keyboard scroll wide content, and zooms timelines.
The page's policy names the script by its hash and allows no other. page.html is its frame, parts.html has tables and
tiles.

Links to files near the page work as long as page and files stay in place: `drop_file_links` removes them from a copy
for another place.

Tables have numbers right aligned, units in the header, and `-` for unknown values. They are HTML, or Markdown with
outside text escaped.

`build_picture` returns a drawing as a file of its own, for pages that show it as an image, with its colours.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from stratlab.drawing.canvas import rect
from stratlab.wording import fit_unit, format_number

EMPTY = Markup("")
FILES = Path(__file__).parent
SCRIPTS = ("sorting.js", "scrolling.js", "zooming.js")
TEMPLATES = Environment(loader=FileSystemLoader(FILES), autoescape=True, undefined=StrictUndefined)
PARTS: Any = TEMPLATES.get_template("parts.html").module
MOST_FILES = 8  # of a kind; the link to their folder has all
FILE_LINK = re.compile(r'<a class="file" href="[^"]*">(.*?)</a>', re.DOTALL)
ONLY_HERE = re.compile(r'<span class="here">.*?</span>', re.DOTALL)
WAY_BACK = re.compile(r'<p class="back">.*?</p>', re.DOTALL)
UNITS = {"ms": "ms", "us": "us", "s": "s", "pct": "%", "gib": "GiB", "mib": "MiB", "bytes": "bytes"}
SPECIAL = "\\`*_{}[]<>#+!|~"  # characters that Markdown or the HTML in it would read as markup
LONGEST = 240


@dataclass(frozen=True)
class Section:
    """A part of a page. `html` comes from this package; a plain `str` is shown as text, escaped.

    Attributes:
        nothing: why there is nothing to show; such sections are one line at the end of the page.
        half: in one of two columns, if the screen has room for them.
        folded: only its title with `result`, until it is clicked.
        result: the answer of the section in a few words.
        mark: next to the title, as `badge("CPU", "warn")`.
    """

    title: str
    html: Markup = EMPTY
    nothing: str = ""
    half: bool = False
    folded: bool = False
    result: str = ""
    mark: Markup = EMPTY


def read_parts(file: Path) -> Any:
    """Return the macros and texts of a template."""
    return TEMPLATES.from_string(file.read_text()).module


def paragraph(content: str | Markup) -> Markup:
    return Markup("<p>{}</p>").format(content)


def loud(sentence: str) -> Markup:
    """Return an important sentence of the banner."""
    return Markup('<strong class="loud">{}</strong>').format(sentence)


def subtitle(content: str) -> Markup:
    return Markup("<h3>{}</h3>").format(content)


def details(summary: str, content: Markup) -> Markup:
    """Return a part that is folded until it is clicked, and unfolded on paper."""
    return Markup("<details><summary>{}</summary>{}</details>").format(summary, content)


def tile_row(answers: Sequence[Any]) -> Markup:
    """A tile for each, to be read in passing: its `question`, `answer`, `number`, `why`, `cause`, and whether
    it is `open` or `doubtful`."""
    return Markup(PARTS.tile_row(answers))


def build_page(
    title: str,
    origin: str,
    sections: Sequence[Section],
    banner: Sequence[str | Markup] = (),
    links: Markup = EMPTY,
    lead: Markup = EMPTY,
) -> str:
    """Return the page as text.

    Args:
        title: heading and window title.
        origin: the origin of every number of the page (backend, hardware, steps); shown under the heading.
        sections: in reading order.
        banner: the limits of the page's numbers, once for all of them; a sentence each.
        links: to other places, below the heading.
        lead: the answer, first of all.
    """
    style = Markup((FILES / "page.css").read_text())
    script = Markup("").join(Markup((FILES / name).read_text()) for name in SCRIPTS)
    return TEMPLATES.get_template("page.html").render(
        title=title,
        origin=origin,
        banner=banner,
        links=links,
        lead=lead,
        sections=[(f"s{i}", section) for i, section in enumerate((s for s in sections if not s.nothing), 1)],
        silent=[section for section in sections if section.nothing],
        style=style,
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def link(words: str, address: str) -> Markup:
    """Link to another site."""
    return Markup('<a href="{}">{}</a>').format(address, words)


def link_file(words: str, path: Path, page_folder: Path) -> Markup:
    """Link a file or folder, relative to the page's folder."""
    there, here = map(os.path.realpath, (path, page_folder))  # Path.resolve ends where links lead in a circle
    address = urllib.parse.quote(os.path.relpath(there, here))
    return Markup('<a class="file" href="{}">{}</a>').format(address + "/" * path.is_dir(), words)


def link_ranks(files: Mapping[int, Path], page_folder: Path) -> list[Markup]:
    """Link the file of each rank; of many the first ones, and the folder."""
    found = [link_file(f"rank {rank}", files[rank], page_folder) for rank in list(files)[:MOST_FILES]]
    if len(files) > MOST_FILES:
        folder = next(iter(files.values())).parent
        found.append(link_file(f"all {len(files)}", folder, page_folder))
    return found


def way_back(page: Path | None, page_folder: Path) -> Markup:
    """Return the line that leads from a run's page to its comparison's. Empty without that: `set_way_back` fills it."""
    there = link_file("Comparison with other runs", page, page_folder) if page and page.is_file() else ""
    return Markup('<p class="back">{}</p>').format(there)


def set_way_back(text: str, page: Path, page_folder: Path) -> str:
    """Return the text of a run's page, leading to this page of its comparison."""
    line = str(way_back(page, page_folder))
    return WAY_BACK.sub(lambda _: line, text, count=1)


def only_here(words: str) -> Markup:
    """Return words that hold only while a page and its linked files stay in place."""
    return Markup('<span class="here">{}</span>').format(words)


def drop_file_links(text: str) -> str:
    """Return a page for another place: the words of its links to files, without the links and without local notes."""
    text = WAY_BACK.sub(str(way_back(None, Path())), text)
    return FILE_LINK.sub(r"\1", ONLY_HERE.sub("", text))


@dataclass(frozen=True)
class Column:
    """A column: the key in the rows, and the form of its header and numbers.

    `header` and `unit` default to the key's parts: `step_time_ms_p50` -> "step time p50" in "ms". `digits` are
    decimals; None = 4 significant digits.
    """

    key: str
    header: str = ""
    unit: str = ""
    digits: int | None = None
    wide: bool = False
    """Holds sentences: it keeps room for them next to many other columns."""
    right: bool = False
    """On the right like numbers, though some are written as text: `<= 9.80`."""

    def title(self) -> tuple[str, str]:
        """Return header and unit."""
        if self.header:
            return self.header, self.unit
        words, found = self.key.removesuffix("_per_s").split("_"), ""
        if self.key.endswith("_per_s"):
            found = "per s"
        elif named := [word for word in words if word in UNITS]:
            found = UNITS[named[-1]]
            words = [word for word in words if word not in UNITS]
        if not words:  # the key is only the unit: `bytes`
            return found, ""
        return " ".join(words), self.unit or found


Columns = Sequence[Column | str]
"""In order; a plain name stands for `Column(name)`."""
TableRows = Sequence[Any]
"""One each: key -> value, or an object with such attributes; numbers, texts, None, or `Markup` (a badge). A key that is
absent counts as None."""


def badge(word: str, kind: str) -> Markup:
    """Return a word in a coloured frame. `kind`: good, warn, bad, or plain."""
    assert kind in ("good", "warn", "bad", "plain"), kind
    return Markup('<span class="badge {}">{}</span>').format(kind, word)


def html_table(rows: TableRows, columns: Columns) -> Markup:
    """Return a table with one line per row."""
    fitted, shown = fit_sizes(rows, columns)
    sides = ["num" if _is_numeric(fitted, column) else "" for column in shown]
    heads = [(*column.title(), side) for column, side in zip(shown, sides, strict=True)]
    places = [(column, "wide" if column.wide else side) for column, side in zip(shown, sides, strict=True)]
    lines = [[(_show(row.get(column.key), column), css) for column, css in places] for row in fitted]
    return Markup(PARTS.table(heads, lines))


def fit_sizes(rows: TableRows, columns: Columns) -> tuple[list[dict[str, Any]], list[Column]]:
    """Return rows and columns; those in GiB whose sizes are all small in a unit that suits them."""
    fitted = [dict(row if isinstance(row, Mapping) else vars(row)) for row in rows]
    shown = [column if isinstance(column, Column) else Column(column) for column in columns]
    for i, column in enumerate(shown):
        factor, unit = fit_unit(row.get(column.key) for row in fitted)
        title, own = column.title()
        if own != "GiB" or unit == "GiB":
            continue
        shown[i] = Column(column.key, title, unit)
        for row in fitted:
            if isinstance(row.get(column.key), (int, float)):
                row[column.key] *= factor
    return fitted, shown


def _is_numeric(rows: Sequence[Mapping[str, Any]], column: Column) -> bool:
    values = [row[column.key] for row in rows if row.get(column.key) is not None]
    if column.right:
        return True
    if not values:  # an empty number keeps its side
        return bool(column.title()[1])
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def _show(value: Any, column: Column) -> str | Markup:
    return value if isinstance(value, Markup) else format_number(value, column.digits)


def escape_markdown(text: Any) -> str:
    """Return the text on one line, with a backslash before every character that could be markup."""
    line = " ".join(str(text).split())
    return "".join(f"\\{letter}" if letter in SPECIAL else letter for letter in line)


def markdown_table(rows: TableRows, columns: Columns) -> str:
    """Return a table with numbers at the right; `-` if a value is not known, sizes in a unit that suits them, long
    texts cut.
    """
    fitted, shown = fit_sizes(rows, columns)
    heads = [f"{name} ({unit})" if unit else name for name, unit in (column.title() for column in shown)]
    values = [[row.get(column.key) for row in fitted] for column in shown]
    numeric = [all(isinstance(v, int | float) for v in each if v is not None) for each in values]
    lines = [[escape_markdown(head) for head in heads], ["---:" if right else "---" for right in numeric]]
    for row in fitted:
        texts = [str(_show(row.get(column.key), column)) for column in shown]
        cut = [text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…" for text in texts]
        lines.append([escape_markdown(text) for text in cut])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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
