"""Attributes of modules and classes that are other ones for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_INHERITED = object()


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Sets these attributes of `owner`, and puts back what was there."""
    before = {name: vars(owner).get(name, _INHERITED) for name in attributes}  # getattr would bind
    assert all(hasattr(owner, name) for name in attributes), f"{owner} has not all of {list(attributes)}"
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            if value is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
