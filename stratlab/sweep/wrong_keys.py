"""What pydantic refuses of a sweep's file, told by key, value and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from stratlab.nearest import ask_nearest
from stratlab.sweep.tuning_definition import Tune

KINDS = ("bool", "int", "float", "str", "list[any]", "dict[str,any]")
KEY = "[key]"
PATHS = ("matrix", "set", "exclude")
"""Keys whose own keys are paths: of one that is none the rules of the file tell."""
WITHIN = {
    "list_type": "a list of values",
    "too_short": "a list with one value at least",
    "dict_type": "names with values, such as {name: value}",
    "string_type": "a text",
}
"""Of what stands inside of a key: kind of mistake -> what is allowed."""
SCALAR = "a text, a number, true or false"
SHOWN = 80
"""Characters of a value that are shown."""


def list_wrong_keys(failure: ValidationError, sweep: type[BaseModel]) -> list[str]:
    """A sentence for each place: a value that may be of several kinds is wrong once."""
    found: dict[str, str] = {}
    for error in failure.errors(include_url=False):
        place = ".".join(str(part) for part in error["loc"] if str(part) not in KINDS)
        if error["loc"][-1] == KEY and error["loc"][0] in PATHS:
            continue
        found.setdefault(place, _say(place, error, sweep))
    return list(found.values())


def _say(place: str, error: Mapping[str, Any], sweep: type[BaseModel]) -> str:
    loc = error["loc"]
    of_tune = loc[0] == "tune" and len(loc) > 1
    model, name = (Tune, str(loc[1])) if of_tune else (sweep, str(loc[0]))
    if error["type"] in ("extra_forbidden", "invalid_key"):
        asked = ask_nearest(name, model.model_fields)
        there = f"{', ' if asked else ''}{asked}; there are {', '.join(model.model_fields)}"
        return f"{place}: no such key{there} [SL-sweep-key-unknown]"
    if error["type"] == "missing":
        return f"{place}: is missing, expected {_expect(model, name)} [SL-sweep-key-missing]"
    if loc[-1] == KEY:
        return f"{place.removesuffix(f'.{KEY}')}: expected a text as the name [SL-sweep-name-not-text]"
    if loc[-1] in KINDS:
        expected = f"{SCALAR}{', a list, or names with values' if name == 'set' else ''}"
    elif len(loc) == 1 + of_tune:
        expected = _expect(model, name)
    else:
        expected = WITHIN.get(error["type"], _expect(model, name))
    return f"{place}={show_value(error['input'])}: expected {expected} [SL-sweep-value]"


def _expect(model: type[BaseModel], name: str) -> str:
    """What the key takes: its description, and of a number the limits that are checked."""
    entry = model.model_json_schema()["properties"][name]
    if entry.get("type") == "integer":
        return f"a whole number from {entry['minimum']} to {entry['maximum']}"
    if "enum" in entry:
        return f"one of {', '.join(entry['enum'])}"
    return str(entry["description"])


def show_value(value: object) -> str:
    """As YAML has it, cut where it is long.

    >>> [show_value(value) for value in (None, True, "two", 2.5, [1])]
    ['null', 'true', "'two'", '2.5', '[1]']
    """
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = repr(value) if isinstance(value, str | int | float | list | dict) else str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
