"""One self-contained HTML page: opens from disk, in MLflow's sandboxed viewer, on paper; loads nothing.

Its one script sorts tables by a click on a column's head, and lets the keyboard scroll what is wider than the screen;
the page's policy names it by its hash and allows no other.

Links of a page. Those to files beside it hold as long as page and file lie where they are: a copy of the page that
goes elsewhere is given none, `drop_file_links`.

Tables as HTML: numbers right aligned, units in the header, `-` where nothing is known.

Tables and text as Markdown; what comes from outside is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stratlab.wording import fit_unit, format_number

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


MOST_FILES = 8  # of a kind; the link to their folder has all
FILE_LINK = re.compile(r'<a class="file" href="[^"]*">(.*?)</a>', re.DOTALL)
ONLY_HERE = re.compile(r'<span class="here">.*?</span>', re.DOTALL)
WAY_BACK = re.compile(r'<p class="back">.*?</p>', re.DOTALL)


def link(words: str, address: str) -> Markup:
    """To another site."""
    return Markup('<a href="{}">{}</a>').format(address, words)


def link_file(words: str, path: Path, page_folder: Path) -> Markup:
    """To a file, or to a folder, as it is seen from the page's folder."""
    there, here = map(os.path.realpath, (path, page_folder))  # Path.resolve ends where links lead in a circle
    address = urllib.parse.quote(os.path.relpath(there, here))
    return Markup('<a class="file" href="{}">{}</a>').format(address + "/" * path.is_dir(), words)


def link_ranks(files: Mapping[int, Path], page_folder: Path) -> list[Markup]:
    """To the file of each rank; of many to the first ones, and to the folder."""
    found = [link_file(f"rank {rank}", files[rank], page_folder) for rank in list(files)[:MOST_FILES]]
    if len(files) > MOST_FILES:
        folder = next(iter(files.values())).parent
        found.append(link_file(f"all {len(files)}", folder, page_folder))
    return found


def way_back(page: Path | None, page_folder: Path) -> Markup:
    """The line that leads from a run's page to its comparison's. Empty without that: `set_way_back` fills it."""
    there = link_file("Comparison with other runs", page, page_folder) if page and page.is_file() else ""
    return Markup('<p class="back">{}</p>').format(there)


def set_way_back(text: str, page: Path, page_folder: Path) -> str:
    """The text of a run's page, leading to this page of its comparison."""
    line = str(way_back(page, page_folder))
    return WAY_BACK.sub(lambda _: line, text, count=1)


def only_here(words: str) -> Markup:
    """Words that are true as long as a page and what it links to lie where they are."""
    return Markup('<span class="here">{}</span>').format(words)


def drop_file_links(text: str) -> str:
    """A page for another place: the words of its links to files, without the links; nothing that is true here alone."""
    text = WAY_BACK.sub(str(way_back(None, Path())), text)
    return FILE_LINK.sub(r"\1", ONLY_HERE.sub("", text))


UNITS = {"ms": "ms", "us": "us", "s": "s", "pct": "%", "gib": "GiB", "mib": "MiB", "bytes": "bytes"}


@dataclass(frozen=True)
class Column:
    """A column: the key in the rows, and how its header and numbers look.

    `header` and `unit` default to what the key says: `step_time_ms_p50` -> "step time p50" in "ms".
    `digits` are decimals; None = 4 significant digits.
    """

    key: str
    header: str = ""
    unit: str = ""
    digits: int | None = None
    wide: bool = False
    """Holds sentences: it keeps room for them beside many other columns."""
    right: bool = False
    """On the right like numbers, though some are written as text: `<= 9.80`."""

    def title(self) -> tuple[str, str]:
        """Header and unit."""
        if self.header:
            return self.header, self.unit
        words, found = self.key.removesuffix("_per_s").split("_"), ""
        if self.key.endswith("_per_s"):
            found = "per s"
        elif named := [word for word in words if word in UNITS]:
            found = UNITS[named[-1]]
            words = [word for word in words if word not in UNITS]
        if not words:  # the unit is all there is: `bytes`
            return found, ""
        return " ".join(words), self.unit or found


def badge(word: str, kind: str) -> Markup:
    """A word in a coloured frame. `kind`: good, warn, bad, or plain."""
    assert kind in ("good", "warn", "bad", "plain"), kind
    return Markup('<span class="badge {}">{}</span>').format(kind, word)


def html_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column | str]) -> Markup:
    """A table with one line per row.

    Args:
        rows: key -> value; numbers, texts, None, or `Markup` (a badge). A key that is absent counts as None.
        columns: in order; a plain name stands for `Column(name)`.
    """
    shown = [column if isinstance(column, Column) else Column(column) for column in columns]
    rows, shown = fit_sizes(rows, shown)
    numeric = {column.key: _is_numeric(rows, column) for column in shown}
    head = Markup("").join(_header(column, numeric[column.key]) for column in shown)
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(_cell(row.get(column.key), column, numeric[column.key]) for column in shown)
        )
        for row in rows
    )
    return Markup(
        '<div class="scroll"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
    ).format(head, body)


def fit_sizes(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]
) -> tuple[list[dict[str, Any]], list[Column]]:
    """Columns in GiB whose sizes are all small, in a unit that suits them."""
    fitted, found = [dict(row) for row in rows], []
    for column in columns:
        factor, unit = fit_unit(row.get(column.key) for row in rows)
        title, own = column.title()
        if own != "GiB" or unit == "GiB":
            found.append(column)
            continue
        found.append(Column(column.key, title, unit))
        for row in fitted:
            if isinstance(row.get(column.key), (int, float)):
                row[column.key] *= factor
    return fitted, found


def _is_numeric(rows: Sequence[Mapping[str, Any]], column: Column) -> bool:
    values = [row[column.key] for row in rows if row.get(column.key) is not None]
    if column.right:
        return True
    if not values:  # a number that nobody has keeps its side
        return bool(column.title()[1])
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def _header(column: Column, numeric: bool) -> Markup:
    name, unit = column.title()
    units = Markup(' <span class="unit">{}</span>').format(unit) if unit else Markup("")
    return Markup('<th scope="col"{}>{}{}</th>').format(_css(numeric), name, units)


def _cell(value: Any, column: Column, numeric: bool) -> Markup:
    content = value if isinstance(value, Markup) else format_number(value, column.digits)
    return Markup("<td{}>{}</td>").format(Markup(' class="wide"') if column.wide else _css(numeric), content)


def _css(numeric: bool) -> Markup:
    return Markup(' class="num"') if numeric else Markup("")


SPECIAL = "\\`*_{}[]<>#+!|~"  # what Markdown or the HTML in it would read as markup
LONGEST = 240

Columns = Sequence[Column | str]


def escape_markdown(text: Any) -> str:
    """On one line, with every character that could be markup behind a backslash."""
    line = " ".join(str(text).split())
    return "".join(f"\\{letter}" if letter in SPECIAL else letter for letter in line)


def markdown_table(rows: Sequence[Mapping[str, Any]], columns: Columns) -> str:
    """A table with numbers at the right; `-` where a value is not known, sizes in a unit that suits
    them, long texts cut."""
    rows, shown = fit_sizes(rows, [c if isinstance(c, Column) else Column(c) for c in columns])
    titles = [
        " ".join(filter(None, (name, f"({unit})" if unit else "")))
        for name, unit in (c.title() for c in shown)
    ]
    numeric = [
        all(isinstance(row.get(c.key), int | float) for row in rows if row.get(c.key) is not None)
        for c in shown
    ]
    lines = [titles, ["---:" if right else "---" for right in numeric]]
    lines += [[_markdown_cell(row.get(column.key), column) for column in shown] for row in rows]
    head, rule, *body = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in ([escape_markdown(t) for t in head], rule, *body))


def _markdown_cell(value: Any, column: Column) -> str:
    text = format_number(value, column.digits)
    return escape_markdown(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")
