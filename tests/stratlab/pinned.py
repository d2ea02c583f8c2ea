"""What was said once is said again: reports, pages and drawings against files of tests/data.

    STRATLAB_PIN=1 pytest tests/stratlab/...    # pins them anew: a changed line is a changed behaviour

A report is pinned without what depends on where its runs lie and on how it is worded; a page as its numbers.
"""

import gzip
import json
import math
import os
import re
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
PLACES = ("run_dir", "folder")
WORDS = 3
"""A text of more words is a sentence: what it names is compared, and its words are free."""


def reduce(content, names):
    if isinstance(content, dict):
        return {key: reduce(value, names) for key, value in content.items() if key not in PLACES}
    if isinstance(content, list):
        return [reduce(value, names) for value in content]
    if isinstance(content, str) and content.count(" ") >= WORDS:
        told = [word.strip(".,-") for word in re.findall(r"[\w.,-]+", content)]
        return " ".join(word for word in told if word in names or re.search(r"[\d_]", word))
    return content


def list_differences(ours, pinned, place=""):
    if isinstance(ours, dict) and isinstance(pinned, dict) and ours.keys() == pinned.keys():
        for key in ours:
            yield from list_differences(ours[key], pinned[key], f"{place}/{key}")
    elif isinstance(ours, list) and isinstance(pinned, list) and len(ours) == len(pinned):
        for number, (one, other) in enumerate(zip(ours, pinned, strict=True)):
            yield from list_differences(one, other, f"{place}/{number}")
    elif ours != pinned and not (
        {type(ours), type(pinned)} <= {int, float} and math.isclose(ours, pinned, rel_tol=1e-9, abs_tol=1e-12)
    ):
        yield f"{place}: {ours!r}, pinned {pinned!r}"


def check_pinned(file, name, found):
    """`found` is what the file of tests/data has under the name."""
    path, found = DATA / file, json.loads(json.dumps(found))
    if "STRATLAB_PIN" in os.environ:
        text = json.dumps(
            (read_pinned(path) if path.exists() else {}) | {name: found}, indent=0, ensure_ascii=False
        )
        path.write_bytes(
            gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else f"{text}\n".encode()
        )
    else:
        differences = list(list_differences(found, read_pinned(path).get(name)))
        assert differences == [], "\n".join(differences[:20])


def read_pinned(path):
    content = path.read_bytes()
    pinned = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    return pinned


def outline(html):
    """Of each section of a page: how many drawings, rows and links it has, and every number that a reader sees."""
    body = re.sub(r"(?s)<(script|style)\b.*?</\1>", "", html.partition("<body>")[2])
    found = []
    for section in re.split(r"<h2[ >]", body):
        counts = "/".join(str(len(re.findall(f"<{tag}[ >]", section))) for tag in ("svg", "tr", "a"))
        text = re.sub(
            r"<[^>]+>", " ", section.partition('class="narrow"')[0] if "<table" not in section else section
        )
        found.append(" ".join([counts, *re.findall(r"\d[\d,.]*", text)]))
    return found
