"""A setting of an operations file and the text of one that is asked for: whether they are the same, how they read."""

from __future__ import annotations

from typing import Any

from stratlab.tables.image_sizes import find_image_size, say_image_size

OF_A_MODEL = ("model_layers", "model_hidden", "model_heads", "model_kv_heads", "model_intermediate")
OWN = (*OF_A_MODEL, "model_patch", "model_vocab")
"""Settings that are the model's own where they are 0."""


def as_text(value: Any) -> str:
    """As a pod's variables have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_same(model: str, name: str, value: Any, text: str) -> bool:
    """Whether `value` of a file is what is asked for."""
    if name == "image_size" and text.isdecimal():
        return find_image_size(model, value) == find_image_size(model, text)
    if isinstance(value, bool | str):
        return as_text(value) == (text.lower() if isinstance(value, bool) else text)
    try:
        return float(text) == float(value)
    except ValueError:
        return False


def say_setting(model: str, name: str, value: Any) -> str:
    """For a reader, to whom 0 says nothing.

    >>> say_setting("vit_huge", "image_size", 0), say_setting("x", "packing", True), say_setting("x", "teacher", "")
    ("224 (the model's own)", 'true', 'none')
    """
    text = as_text(value)
    if name == "image_size":
        return say_image_size(model, text)
    if text == "0" and name in OWN:
        return "the model's own"
    return text or "none"
