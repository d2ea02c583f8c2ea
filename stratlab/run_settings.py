"""Check single values of `run.config` against the settings' schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from stratlab.wording import name_allowed
from stratlab_spec.settings.files import schema

SETTINGS: Mapping[str, Mapping[str, Any]] = schema()["properties"]
MODELS = "in docs/models.md"
"""Page that lists the choices of the one setting with too many for a sentence."""


DEFAULT_COMPARISON = "default"
"""Comparison of charts and settings that name none."""
WORDS = {"^[A-Za-z0-9][A-Za-z0-9._-]*$": "letters, digits, '.', '_' and '-', with a letter or a digit first"}
"""Patterns that only list characters -> description."""


def name_model(settings: Mapping[str, Any]) -> str:
    """Return a run's model: the last part of `model_path`, which overrides the default `model`; "" = unknown."""
    if path := settings.get("model_path"):
        return PurePosixPath(str(path)).name
    return str(settings.get("model") or "")


def find_problem(name: str, text: str) -> str:
    """Return the expected values if this value is invalid; "" = valid, or a setting of a newer trainer."""
    entry = SETTINGS.get(name)
    if entry is None:
        return ""
    if "enum" in entry:
        return _find_choice_problem([str(value) for value in entry["enum"] if value is not None], text)
    if "boolean" in entry.get("type", ()):
        return "" if text.lower() in ("true", "false") else "expected true or false"
    if "integer" in entry.get("type", ()):
        least, most = entry["minimum"], entry["maximum"]
        fits = re.fullmatch("-?[0-9]{1,18}", text) and least <= int(text) <= most
        return "" if fits else f"expected a whole number from {least} to {most}"
    if "anyOf" in entry and "enum" in entry["anyOf"][0]:
        names, other = entry["anyOf"][:2]
        fits = re.search(other["pattern"], text) is not None
        return "" if fits else _find_choice_problem(names["enum"], text, f" or {other['description']}")
    if "anyOf" in entry:
        return "" if _is_number(entry["anyOf"], text) else f"expected {_describe_limits(entry['anyOf'][0])}"
    fits = re.search(entry.get("pattern", ""), text) and len(text) >= entry.get("minLength", 0)
    if not fits and (words := WORDS.get(entry.get("pattern", ""))):
        return f"expected {words}"
    return "" if fits else f"expected {entry['description'][0].lower()}{entry['description'][1:]}"


def _find_choice_problem(allowed: list[str], text: str, other: str = "") -> str:
    if text in allowed:
        return ""
    return name_allowed(text, allowed, "expected one of", MODELS) + other


def _is_number(kinds: list[Mapping[str, Any]], text: str) -> bool:
    return any("pattern" in kind and re.fullmatch(kind["pattern"], text) for kind in kinds)


def _describe_limits(limits: Mapping[str, Any]) -> str:
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    return " ".join(
        ["a number", *(f"{word} {limits[name]:g}" for name, word in words.items() if name in limits)]
    )
