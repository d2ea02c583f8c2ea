"""Names of the classes of weights, as their config.json has them, held against those of a data set. Without torch."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.settings.spelling import name_first

UNNAMED = re.compile(r"LABEL_\d+")
"""What transformers calls a class that has no name."""
MOST_NAMED = 5


def read_names(content: Mapping[str, Any]) -> list[str]:
    """In the order of the outputs; none where the file names none.

    Args:
        content: of a config.json, ours or transformers'.
    """
    if names := content.get("class_names"):
        return [str(name) for name in names]
    by_code = content.get("id2label") or {}
    try:
        names = [str(by_code[code]) for code in sorted(by_code, key=int)]
    except (TypeError, ValueError):
        return []
    return [] if all(UNNAMED.fullmatch(name) for name in names) else names


def match_names(known: Sequence[str], wanted: Sequence[str]) -> list[int] | None:
    """For each wanted class its place among the known ones; None: they are not the same classes.

    Names that differ only by case, blanks, underscores or the writing of an accent are one name, unless that made two
    of a side equal. Where one side has no names, the caller compares their number: the order is kept.
    """
    if not known or not wanted:
        return list(range(len(wanted)))
    for form in (str, _simplify):
        places = {form(name): place for place, name in enumerate(known)}
        forms = [form(name) for name in wanted]
        if len(places) == len(known) == len(wanted) and places.keys() == set(forms):
            return [places[name] for name in forms]
    return None


def describe_other(known: Sequence[str], wanted: Sequence[str], data: str) -> str:
    """How two lists of classes differ, for a sentence that begins with the weights."""
    if len(known) != len(wanted):
        return f"tells {len(known)} classes apart, the data set {data} has {len(wanted)}"
    here, there = (
        name_first([repr(name) for name in one if name not in other], MOST_NAMED)
        for one, other in ((known, wanted), (wanted, known))
    )
    return f"knows other classes than the data set {data}: {here} instead of {there}"


def hash_names(names: Sequence[str]) -> str:
    """Equal for the same names in the same order alone."""
    return hashlib.sha256("\0".join(names).encode()).hexdigest()


def compose_accents(name: str) -> str:
    """One writing of a name: macOS stores an accent as a character of its own, Linux does not."""
    return unicodedata.normalize("NFC", name)


def _simplify(name: str) -> str:
    return " ".join(compose_accents(name).replace("_", " ").split()).casefold()
