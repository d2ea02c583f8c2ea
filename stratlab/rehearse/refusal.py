"""Helm says that a value has no such name; this says which names there are."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import Any

UNKNOWN = re.compile(r"- at '(?P<path>[^']*)': additional properties (?P<names>'.*') not allowed")


def explain_refusal(text: str, chart: Path) -> str:
    """Helm's error, with the nearest and the allowed names under each unknown one."""
    subchart = ""
    lines = []
    for line in text.splitlines():
        lines.append(line)
        if re.fullmatch(r"\S+:", line):
            subchart = line.removesuffix(":")
        if found := UNKNOWN.search(line):
            allowed = _allowed_names(chart, subchart, found["path"])
            lines += [_hint(name, allowed) for name in re.findall(r"'([^']*)'", found["names"]) if allowed]
    return "\n".join(lines)


def _hint(name: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(name, allowed, n=1)
    question = f"did you mean {near[0]}? " if near else ""
    return f"  {name}: {question}allowed are {', '.join(allowed)}"


def _allowed_names(chart: Path, subchart: str, path: str) -> list[str]:
    """The properties that the schema knows at this path; none for a packed chart."""
    folder = chart / "charts" / subchart if subchart and subchart != chart.name else chart
    try:
        node: Any = json.loads((folder / "values.schema.json").read_text())
    except OSError:
        return []
    for part in filter(None, path.split("/")):
        node = node.get("properties", {}).get(part, {})
    return sorted(node.get("properties", {}))
