"""The settings as a JSON schema for the charts' values, and the command that prints them."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from trainer.settings.config import Config, ConfigError
from trainer.settings.fields import HUB_ID, MODELS
from trainer.settings.number_bounds import text_pattern, with_bounds

USAGE = """\
  TRAINER_STRATEGY=ddp TRAINER_RUN=try python -m trainer.settings            # show the resolved settings
  python -m trainer.settings --schema                                        # JSON schema of `run.config`
  python -m trainer.settings deepspeed --set strategy=zero3 --processes 8    # what DeepSpeed would get

What is checked is what can be said of the settings alone. What depends on the number of processes and on the device is
checked where the run starts: python -m trainer.program check, or python -m trainer.layout for nd."""


def schema() -> dict[str, Any]:
    """JSON schema of `run.config` in the charts' values: every setting but those that the chart fills."""
    whole = Config.model_json_schema()
    properties = {}
    for name, entry in whole["properties"].items():
        if entry.pop("set_by_chart", False):
            continue
        entry.pop("of_pixels", None)
        entry.pop("title", None)
        entry = with_bounds(entry)
        if entry.get("type") == "number":
            # `helm --set lr=0.00001` arrives as a string: Helm's parser does not know exponents or small floats
            limits = {k: entry.pop(k) for k in [*entry] if k not in ("description", "default")}
            entry["anyOf"] = [limits, {"type": "string", "pattern": text_pattern(limits)}]
        if name == "model":
            # helm names a list's words when it refuses one, and of a pattern nothing but the pattern
            entry.pop("type")
            hub = {"type": "string", "pattern": f"^{HUB_ID}$", "maxLength": entry.pop("maxLength")}
            entry["anyOf"] = [{"enum": [*MODELS]}, hub | {"description": "owner/name"}]
            entry.pop("pattern")
        properties[name] = entry if name == "strategy" else _or_null(entry)
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _or_null(entry: dict[str, Any]) -> dict[str, Any]:
    """Also null, which takes back what another values file says; a chart's strategy is what its name says."""
    changed = dict(entry)
    if "enum" in changed:
        changed["enum"] = [*changed["enum"], None]
    if "anyOf" in changed:
        changed["anyOf"] = [*changed["anyOf"], {"type": "null"}]
    elif "type" in changed:
        changed["type"] = [changed["type"], "null"]
    return changed


def main(arguments: list[str]) -> int:
    """Prints the schema, or the settings that the environment resolves to."""
    if arguments == ["--schema"]:
        print(json.dumps(schema(), indent=2))
        return 0
    if arguments:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        print(Config.from_env(os.environ).model_dump_json(indent=2))
    except ConfigError as failure:
        print(failure, file=sys.stderr)
        return 2
    return 0
