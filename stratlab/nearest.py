"""What somebody may have meant whose word is not known, and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

FEW = 12
"""Names up to so many are told all of them."""
NEAREST = 4


def ask_nearest(word: str, known: Iterable[str]) -> str:
    """A question, where a known word is near; else "".

    >>> ask_nearest("fdsp", ["ddp", "fsdp"]), ask_nearest("banana", ["ddp", "fsdp"])
    ('did you mean fsdp?', '')
    """
    near = difflib.get_close_matches(word, sorted(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


def name_allowed(word: str, known: Sequence[str], lead: str, place: str) -> str:
    """The nearest, and behind `lead` all where they are few, else how many there are at `place`.

    >>> name_allowed("fdsp", ["ddp", "fsdp"], "expected one of", "in a file")
    'did you mean fsdp? expected one of ddp, fsdp'
    >>> name_allowed("modle", ["mode", "model", *"abcdefghijk"], "expected one of", "in a file")
    'did you mean mode or model? expected one of the 13 in a file'
    """
    if len(known) <= FEW:
        told = (ask_nearest(word, known), f"{lead} {', '.join(known)}")
    else:
        told = (_ask_several(word, known), f"{lead} the {len(known)} {place}")
    return " ".join(filter(None, told))


def _ask_several(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, sorted(known), n=NEAREST)
    return f"did you mean {' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}?" if near else ""
