"""Every place in the charts' values that takes a text, found in their schema: a new one needs no edit here."""

import json
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
    """Where a list takes one of several records, each has an item of its own. What only allows others is no place."""
    found = []
    places = [place for place in _walk(schema, ()) if place[0] != ALLOWED]
    for number, (path, text_schema) in enumerate(places):
        texts = (
            f"mark{number}x",
            f"/mark{number}x",
            f"http://mark{number}x",
            f"mark.x/{number}x",
            f"MARK_{_letters(number)}",
            f"7{number:03}77",
            f"0.7{number:03}77",
            f"every_{number + 100}",
            f"kill@{number + 1000}",
        )
        marker = next(text for text in texts if _accepts(text_schema, text))
        found.append(StringValue(path, text_schema, marker))
    return found


ALLOWED = ("podSecurity", "hostPaths", 0)
HOST_PATH = "hostPath.path"
EXPRESSIONS = {"matchExpressions": [{"operator": "In"}]}
NEAR = {"labelSelector": EXPRESSIONS}
TERMS = {
    "requiredDuringSchedulingIgnoredDuringExecution": [NEAR],
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": NEAR}],
}
# Without these some texts would reach nothing, or not be allowed.
SWITCHES: dict[str, Any] = {
    "rdma": {"enabled": True},
    "allowFaults": True,
    "scheduling": {"gang": "kueue"},
    "podSecurity": {"level": "privileged"},
    "pod": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [EXPRESSIONS]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": EXPRESSIONS}],
            },
            "podAffinity": TERMS,
            "podAntiAffinity": TERMS,
        },
        "topologySpread": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}],
    },
}


def build_values(texts: Mapping[StringValue, str], api: str = "pytorchjob") -> dict[str, Any]:
    """A values file that says these texts, below `run`."""
    values: dict[str, Any] = {"workload": {"api": api}, **json.loads(json.dumps(SWITCHES))}
    for place, text in texts.items():
        _put(values, place.path, text)
        if str(place).endswith(HOST_PATH):
            _put(values, ALLOWED, text)
            volume = values["pod"]["volumes"][place.path[2]]
            volume["readOnly"] = True
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
        for index, item in enumerate(schema["items"].get("anyOf", [schema["items"]])):
            yield from _walk(item, (*path, index))


def _put(values: dict[str, Any], path: tuple[str | int, ...], text: str) -> None:
    where: Any = values
    for key, following in pairwise(path):
        empty: Any = [] if isinstance(following, int) else {}
        where = _reach(where, key) if isinstance(key, int) else where.setdefault(key, empty)
    if isinstance(path[-1], int):
        _reach(where, path[-1])
    where[path[-1]] = text


def _reach(items: list[Any], index: int) -> Any:
    items.extend({} for _ in range(index + 1 - len(items)))
    return items[index]


def _letters(number: int) -> str:
    return "".join("ABCDEFGHIJ"[int(digit)] for digit in str(number))
