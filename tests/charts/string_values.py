"""Every place in the charts' values that takes a text, found in their schema: a new one needs no edit here."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jsonschema import Draft202012Validator

Schema = dict[str, Any]


@dataclass(frozen=True, eq=False)
class StringValue:
    """A place, as in --set; the schema of its text; and a text that is allowed there and occurs nowhere else."""

    path: tuple[str | int, ...]
    schema: Schema
    marker: str

    def accepts(self, text: str) -> bool:
        return _accepts(self.schema, text)

    def __str__(self) -> str:
        return ".".join(map(str, self.path))


def find_string_values(schema: Schema) -> list[StringValue]:
    found = []
    for number, (path, text_schema) in enumerate(_walk(schema, ())):
        texts = (
            f"mark{number}x",
            f"/mark{number}x",
            f"http://mark{number}x",
            f"mark.x/{number}x",
            f"7{number:03}77",
            f"0.7{number:03}77",
            f"every_{number + 100}",
            f"kill@{number + 1000}",
        )
        marker = next(text for text in texts if _accepts(text_schema, text))
        found.append(StringValue(path, text_schema, marker))
    return found


# Without these some texts would reach nothing.
SWITCHES: dict[str, Any] = {"rdma": {"enabled": True}, "allowFaults": True, "scheduling": {"gang": "kueue"}}


def build_values(texts: Mapping[StringValue, str], api: str = "pytorchjob") -> dict[str, Any]:
    """A values file that says these texts, below `run`."""
    values: dict[str, Any] = {"workload": {"api": api}, **copy.deepcopy(SWITCHES)}
    for place, text in texts.items():
        _put(values, place.path, text)
    return {"run": values}


def _accepts(schema: Schema, text: str) -> bool:
    exact = schema | ({"pattern": schema["pattern"].replace("$", r"\Z")} if "pattern" in schema else {})
    return Draft202012Validator(exact).is_valid(
        text
    )  # `$` of Python matches before a last newline, helm's does not


def _walk(schema: Schema, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Schema]]:
    kinds = schema.get("type", [])
    if "string" in ([kinds] if isinstance(kinds, str) else kinds) and "enum" not in schema:
        yield path, schema
    for branch in schema.get("anyOf", []):
        yield from _walk(branch, path)
    for name, part in schema.get("properties", {}).items():
        yield from _walk(part, (*path, name))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _walk(schema["additionalProperties"], (*path, "memory"))
    if "items" in schema:
        yield from _walk(schema["items"], (*path, 0))


def _put(values: dict[str, Any], path: tuple[str | int, ...], text: str) -> None:
    where: Any = values
    for key, following in pairwise(path):
        empty: Any = [{}] if isinstance(following, int) else {}
        where = where[key] if isinstance(key, int) else where.setdefault(key, empty)
    where[path[-1]] = text
