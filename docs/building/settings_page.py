"""Every value of the charts with default, allowed values and meaning, from the schema of helm."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

Schema = Mapping[str, Any]
LONGEST_PATTERN = 60


def write_settings(repository: Path) -> str:
    """Markdown: a table of `run.config.*`, the trainer's settings, and one of everything else below `run.*`."""
    schema = json.loads((repository / "charts" / "run" / "values.schema.json").read_text())
    values = yaml.safe_load((repository / "charts" / "run" / "values.yaml").read_text())
    rows = [row for row in _list(schema, values, "run") if not row[0].startswith("run.global")]
    config = [row for row in rows if row[0].startswith("run.config.")]
    return "\n".join(
        [
            "# Values\n",
            "Every value of the strategy charts, generated from `charts/run/values.schema.json` and "
            "`charts/run/values.yaml`. `--set run.config.lr=0.001` on the command line, `lr` below "
            "`run.config` in a values file; in the pod the setting `lr` is the variable `TRAINER_LR`.\n",
            f"## Training: run.config ({len(config)})\n",
            _table([(name.removeprefix("run.config."), *rest) for name, *rest in config]),
            f"## The run on the cluster ({len(rows) - len(config)})\n",
            _table([row for row in rows if row not in config]),
        ]
    )


def _list(schema: Schema, values: Any, path: str) -> Iterator[tuple[str, ...]]:
    """(name, default, allowed, meaning) of each value below `schema`."""
    for name, each in schema.get("properties", {}).items():
        default = values.get(name) if isinstance(values, Mapping) else None
        if "properties" in each:
            yield from _list(each, default, f"{path}.{name}")
            continue
        default = each.get("default", default)
        text = "" if default in (None, "", [], {}) else json.dumps(default).strip('"')
        yield f"{path}.{name}", text, _say_allowed(each), each.get("description", "")


def _say_allowed(each: Schema) -> str:
    if "enum" in each:
        return ", ".join(f"`{word}`" for word in each["enum"] if word is not None)
    if names := next((kind["enum"] for kind in each.get("anyOf", ()) if "enum" in kind), []):
        others = [f"`{kind['description']}`" for kind in each["anyOf"] if "description" in kind]
        return ", ".join([*(f"`{name}`" for name in names), *others])
    number = next((kind for kind in each.get("anyOf", ()) if kind.get("type") == "number"), each)
    kinds = number.get("type", "")
    kinds = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
    bounds = [
        f"{sign} {number[key]:g}"
        for key, sign in (
            *(("minimum", "≥"), ("exclusiveMinimum", ">")),
            *(("maximum", "≤"), ("exclusiveMaximum", "<")),
        )
        if key in number and abs(number[key]) < 1e9
    ]
    pattern = each.get("pattern", "") if not bounds else ""
    shown = f" `{pattern}`" if 0 < len(pattern) <= LONGEST_PATTERN and "|" not in pattern else ""
    return " ".join([*kinds, *bounds]) + shown


def _table(rows: list[tuple[str, ...]]) -> str:
    lines = ["| value | default | allowed | meaning |", "|---|---|---|---|"]
    for name, default, allowed, meaning in rows:
        cells = (f"`{name}`", f"`{default}`" if default else "", allowed, meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
