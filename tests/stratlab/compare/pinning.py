"""A report as it is pinned: without what depends on where its runs lie and on how it is worded."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

PLACES = ("run_dir", "folder")
WORDS = 3
"""A text of more words is a sentence: what it names is compared, and its words are free."""


def reduce(content: Any, names: set[str]) -> Any:
    if isinstance(content, dict):
        return {key: reduce(value, names) for key, value in content.items() if key not in PLACES}
    if isinstance(content, list):
        return [reduce(value, names) for value in content]
    if isinstance(content, str) and content.count(" ") >= WORDS:
        told = [word.strip(".,-") for word in re.findall(r"[\w.,-]+", content)]
        return " ".join(word for word in told if word in names or re.search(r"[\d_]", word))
    return content


def list_differences(ours: Any, pinned: Any, place: str = "") -> Iterator[str]:
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
