"""Pickles as the image's Python writes them, in whatever Python the tests run."""

from enum import Enum
from typing import Any


def pickle_enums_by_name() -> None:
    """From here on this process pickles every enum that it knows as Python 3.11.2 does: getattr(class, name)."""

    def reduce(member: Any, protocol: int) -> Any:
        return getattr, (type(member), member._name_)

    waiting: list[type] = [Enum]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        kind.__reduce_ex__ = reduce  # type: ignore[method-assign, assignment]
