"""Pictures that cannot be decoded: which files they are, and what to say of them. Without torch."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

REPLACE = "remove or replace the file"
THREADS = 8


def explain_undecodable(failure: BaseException) -> str:
    """PIL names an address in memory where it knows no format."""
    if type(failure).__name__ == "UnidentifiedImageError":
        return "it is no picture of a known format"
    return str(failure) or type(failure).__name__


def find_file(table: Any, column: str, index: int) -> str:
    """`train/cat/7.png` where the sample is a file, else nothing."""
    from datasets import Image as Undecoded

    try:
        path = table.cast_column(column, Undecoded(decode=False))[index][column]["path"]
    except Exception:  # the first failure is the one to tell
        return ""
    return str(path or "")


def find_undecodable(table: Any, column: str) -> Iterator[str]:
    """`7 (train/cat/7.png): it is no picture ...`, of every sample that cannot be decoded, in their order."""

    def look(index: int) -> str:
        try:
            if (image := table[index][column]) is not None:
                image.load()
        except Exception as failure:
            file = find_file(table, column, index)
            return f"{index}{f' ({file})' if file else ''}: {explain_undecodable(failure)}"
        return ""

    with ThreadPoolExecutor(THREADS) as pool:
        yield from filter(None, pool.map(look, range(len(table))))
