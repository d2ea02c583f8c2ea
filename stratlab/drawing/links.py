"""Links of a page. Those to files beside it hold as long as page and file lie where they are: a copy of the page that
goes elsewhere is given none, `drop_file_links`.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup

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
