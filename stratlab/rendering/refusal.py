"""What helm says of values that a chart's schema refuses: with the names that there are, and what would be taken."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from stratlab.nearest import name_allowed
from stratlab.tables.names_elsewhere import ELSEWHERE
from stratlab.tables.settings import SETTINGS, find_problem

UNKNOWN = re.compile(r"- at '(?P<path>[^']*)': additional properties (?P<names>'.*') not allowed")
UNMATCHED = re.compile(r"- at '/config/(?P<name>\w+)': '(?P<text>.*)' does not match pattern ")
NO_CHOICE = re.compile(r"- at '/config/(?P<name>\w+)': value must be one of ")
OF_SETTING = re.compile(r" *- at '/config/(?P<name>\w+)': ")
NOTHING = ", <nil>"
"""Among helm's choices: null, which takes a setting back."""
CONFIG = "run.config."


def explain_refusal(text: str, chart: Path, settings: Sequence[str] = (), values: Sequence[Path] = ()) -> str:
    """Helm's error, with the names that there are under each unknown one, and in place of patterns and choices the
    value, which helm does not tell, and what is expected.

    Args:
        settings: as they were typed.
        values: files, over which `settings` win.
    """
    subchart = ""
    lines: list[str] = []
    wishes = _find_wishes(text, settings, values)
    for line in text.splitlines():
        about = OF_SETTING.match(line)
        if about and about["name"] in wishes:  # once, in place of a pattern, which says nothing to a reader
            if (wish := wishes[about["name"]]) not in lines:
                lines.append(wish)
            continue
        lines.append(line.removesuffix(NOTHING))
        if re.fullmatch(r"\S+:", line):
            subchart = line.removesuffix(":")
        if found := UNKNOWN.search(line):
            schema = _find_schema(chart, subchart)
            allowed = _allowed_names(schema, found["path"])
            lines += [
                f"  {name}: {_explain_name(name, found['path'], allowed, schema, chart)}"
                for name in re.findall(r"'([^']*)'", found["names"])
                if allowed
            ]
    return "\n".join(lines)


def _find_wishes(text: str, settings: Sequence[str], values: Sequence[Path]) -> dict[str, str]:
    """Name of a setting -> the line in place of helm's."""
    given = {found["name"]: found["text"] for found in map(UNMATCHED.search, text.splitlines()) if found}
    for found in filter(None, map(NO_CHOICE.search, text.splitlines())):
        if (value := _find_value(found["name"], settings, values)) is not None:
            given.setdefault(found["name"], value)
    wishes = {name: find_problem(name, value) for name, value in given.items()}
    return {name: f"- {CONFIG}{name}={given[name]}: {wish}" for name, wish in wishes.items() if wish}


def _find_value(name: str, settings: Sequence[str], values: Sequence[Path]) -> str | None:
    """What was given for `run.config.<name>` last; None = it came by another way."""
    for setting in reversed([part for text in settings for part in text.split(",")]):
        key, equals, value = setting.partition("=")
        if equals and key.strip() == f"{CONFIG}{name}":
            return value
    for file in reversed(values):
        try:
            node: Any = yaml.safe_load(file.read_text())
        except (OSError, ValueError, yaml.YAMLError):
            continue
        for part in ("run", "config", name):
            node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(node, str | int | float):
            return str(node)
    return None


def _explain_name(name: str, path: str, allowed: Sequence[str], schema: Path, chart: Path) -> str:
    """With the place where a setting of that very name is, and what it is called that has another name elsewhere."""
    told = name_allowed(name, allowed, "allowed are", f"in {schema}")
    if name in ELSEWHERE:
        return f"{ELSEWHERE[name]}; {told}"
    of_run = _allowed_names(_find_schema(chart, "run"), "")
    place = f"{CONFIG}{name}" if name in SETTINGS else f"run.{name}" if name in of_run else ""
    if place and path != "/config":
        told = f"did you mean {place}? {told[told.index('allowed are') :]}"
    return told


def _find_schema(chart: Path, subchart: str) -> Path:
    folder = chart / "charts" / subchart if subchart and subchart != chart.name else chart
    return folder / "values.schema.json"


def _allowed_names(schema: Path, path: str) -> list[str]:
    """The properties that the schema knows at this path; none for a packed chart."""
    try:
        node: Any = json.loads(schema.read_text())
    except OSError:
        return []
    for part in filter(None, path.split("/")):
        node = node.get("properties", {}).get(part, {})
    return sorted(node.get("properties", {}))
