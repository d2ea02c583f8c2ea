"""What somebody may have meant whose word is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def ask_nearest(word: str, known: Iterable[str]) -> str:
    """A question, where a known word is near; else "".

    >>> ask_nearest("fdsp", ["ddp", "fsdp"]), ask_nearest("banana", ["ddp", "fsdp"])
    ('did you mean fsdp?', '')
    """
    near = difflib.get_close_matches(word, sorted(known), n=1)
    return f"did you mean {near[0]}?" if near else ""
