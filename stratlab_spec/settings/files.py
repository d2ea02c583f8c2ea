"""A run's settings from a YAML file and from `key=value`, as the TRAINER_* variables that settings/config.py reads.

Two forms of a file: the settings themselves (`model: vit_tiny`), or the values of a chart, of which `run.config`,
`run.processesPerNode` and `run.env` are a run's and all else is a cluster's. `schema` describes the settings to the
charts, and `python -m trainer.settings` prints both.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from stratlab_spec.settings.bounds import text_pattern, with_bounds
from stratlab_spec.settings.config import PREFIX, Config, ConfigError
from stratlab_spec.settings.fields import HUB_ID, MODELS
from stratlab_spec.settings.old_names import RENAMED, take_new_names

NOTHING = ("null", "~", "Null", "NULL")
"""YAML's words for an empty value: the setting counts as not set."""
OF_A_RUN = ("config", "processesPerNode", "env")
NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Given:
    """The content of a file of settings.

    Attributes:
        settings: setting -> text; None removes the setting.
        processes: of this machine, "" if the file does not set it.
        variables: further ones of the environment.
        left_out: keys of a chart's values that only a cluster uses.
    """

    settings: dict[str, str | None]
    processes: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


class _Text(yaml.BaseLoader):
    """Keep every value as typed: `on` stays on, 1e-3 stays 1e-3; a repeated name is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        found: dict[Hashable, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="expected a name before ':'", problem_mark=key.start_mark)
            if key.value in found:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is there twice", problem_mark=key.start_mark)
            found[key.value] = self.construct_object(value)  # type: ignore[no-untyped-call]
        return found


def read_settings_file(path: Path) -> Given:
    """Return the settings in `path`.

    Raises:
        ConfigError: the file is unreadable, not YAML, or holds unknown settings; naming every problem.
    """
    try:
        content = yaml.load(path.read_text(), Loader=_Text)
    except yaml.YAMLError as failure:
        raise _refuse(path, f"no YAML: {_describe(failure)} [SL-config-no-yaml]") from None
    except RecursionError:
        raise _refuse(path, "no settings: its lists or names are too deep [SL-config-deep]") from None
    except (OSError, ValueError) as failure:  # ValueError: no UTF-8, or a path that cannot be one
        cause = getattr(failure, "strerror", None) or failure
        raise _refuse(path, f"{cause} [SL-config-unreadable]") from None
    if content is None:
        return Given({})
    if not isinstance(content, Mapping):
        raise _refuse(path, "expected names and values, such as `model: vit_tiny` [SL-config-no-names]")
    if isinstance(content.get("run"), Mapping):
        return _read_values(path, content)
    return Given(_read_settings(path, content, ""))


def _refuse(path: Path, problem: str) -> ConfigError:
    return ConfigError(f"--config {path}: {problem}")


def _read_values(path: Path, content: Mapping[str, Any]) -> Given:
    """Read a chart's values. The schema checks their keys; this function checks only the keys that a run uses."""
    run = content["run"]
    left_out = [key for key in content if key != "run"] + [f"run.{key}" for key in run if key not in OF_A_RUN]
    config, processes, entries = (None if run.get(key) in NOTHING else run.get(key) for key in OF_A_RUN)
    if not isinstance(config or {}, Mapping):
        raise _refuse(path, "run.config: expected names and values [SL-config-no-settings]")
    if not isinstance(processes or "", str):
        raise _refuse(path, "run.processesPerNode: expected a number from 1 [SL-config-processes]")
    variables: dict[str, str] = {}
    for each in (entries or []) if isinstance(entries or [], list) else [None]:
        name, value = (each.get("name"), each.get("value")) if isinstance(each, Mapping) else (None, None)
        if not isinstance(name, str) or not isinstance(value, str):
            raise _refuse(path, "run.env: expected a list of name and value [SL-config-env]")
        if not name or "=" in name or not (is_passable(name) and is_passable(value)):
            wrong = f"{name!r}={value!r} cannot be a variable of a process"
            raise _refuse(path, f"run.env: {wrong} [SL-config-env-value]")
        variables[name] = value
    settings = _read_settings(path, config or {}, "run.config.")
    return Given(settings, processes or "", variables, tuple(left_out))


def _read_settings(path: Path, found: Mapping[str, Any], prefix: str) -> dict[str, str | None]:
    problems = []
    for name, value in found.items():
        if not isinstance(value, str):
            kind = "a list" if isinstance(value, list) else "names"
            problems.append(f"{name}: expected one value, not {kind} [SL-config-one-value]")
        elif problem := _find_problem(name, value):
            problems.append(problem)
    if problems:
        raise ConfigError([f"--config {path}: {prefix}{problem}" for problem in problems])
    return {name: None if value in NOTHING else value for name, value in take_new_names(found).items()}


def _find_problem(name: str, value: str) -> str:
    """Return why this cannot become TRAINER_NAME=value. One spelling for each name: of two the last would win
    unseen.
    """
    if not NAME.fullmatch(name):
        return f"{name!r}: no name of a setting{_find_hint(name)} [SL-setting-name]"
    if is_passable(value):
        return ""
    return f"{name}={value!r}: holds a character that no process can be given [SL-setting-character]"


def _find_hint(name: str) -> str:
    """Return a hint for a name in the spelling of charts, variables or other programs."""
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-.]+", "_", name).lower()
    plain = plain.removeprefix(PREFIX.lower()).removeprefix("run_").removeprefix("config_")
    if plain in ("processes", "processes_per_node"):
        return ", that is --processes"
    near = [plain] if plain in Config.model_fields else get_close_matches(plain, Config.model_fields, 1)
    return f", did you mean {near[0]}?" if near else ""


def is_passable(text: str) -> bool:
    """Return whether a process can be given it as an argument or a variable."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _describe(failure: yaml.YAMLError) -> str:
    problem, mark = getattr(failure, "problem", None), getattr(failure, "problem_mark", None)
    if problem and problem.startswith("but "):
        problem = f"{getattr(failure, 'context', '')}, {problem}"
    return (problem or str(failure)) + (f" in line {mark.line + 1}" if mark else "")


def read_pairs(pairs: Iterable[str]) -> dict[str, str | None]:
    """Read `key=value` arguments of --set; `run.config.key=value` means the same.

    Raises:
        ConfigError: naming each argument that is not a pair.
    """
    found: dict[str, str | None] = {}
    problems = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip().removeprefix("run.config.")
        if not equals or not name:
            problems.append(f"--set {pair}: expected key=value, such as lr=0.01 [SL-set-no-pair]")
        elif problem := _find_problem(name, value):
            problems.append(problem)
        found[name] = None if value in NOTHING else value
    if problems:
        raise ConfigError(problems)
    return take_new_names(found)


def build_variables(settings: Mapping[str, str | None]) -> dict[str, str]:
    """Return the TRAINER_* variables of `settings`."""
    return {f"{PREFIX}{name.upper()}": value for name, value in settings.items() if value is not None}


USAGE = """\
  TRAINER_STRATEGY=ddp TRAINER_RUN=try python -m trainer.settings            # show the resolved settings
  python -m trainer.settings --schema                                        # JSON schema of `run.config`
  python -m trainer.settings deepspeed --set strategy=zero3 --processes 8    # what DeepSpeed would get

What is checked is what can be said of the settings alone. What depends on the number of processes and on the device is
checked where the run starts: python -m trainer.program check, or python -m trainer.layout for nd."""


def schema() -> dict[str, Any]:
    """Return the JSON schema of `run.config` in the charts' values: every setting except those that the chart fills.

    Each may also be null, which removes another values file's setting; a chart's name sets its strategy.
    """
    properties = {}
    for name, found in Config.model_json_schema()["properties"].items():
        if found.get("set_by_chart"):
            continue
        entry = with_bounds({key: found[key] for key in found if key not in ("of_pixels", "title")})
        entry["description"] = " ".join(entry["description"].split())
        if entry.get("type") == "number":
            # `helm --set lr=0.00001` arrives as a string: Helm's parser does not know exponents or small floats
            limits = {k: entry.pop(k) for k in [*entry] if k not in ("description", "default")}
            entry["anyOf"] = [limits, {"type": "string", "pattern": text_pattern(limits)}]
        if name == "model":
            # helm names a list's words when it rejects a value, but only the pattern of a pattern
            hub = {"type": "string", "pattern": f"^{HUB_ID}$", "maxLength": entry.pop("maxLength")}
            entry["anyOf"] = [{"enum": [*MODELS]}, hub | {"description": "owner/name"}]
            del entry["type"], entry["pattern"]
        if name != "strategy":
            if "enum" in entry:
                entry["enum"] = [*entry["enum"], None]
            if "anyOf" in entry:
                entry["anyOf"] = [*entry["anyOf"], {"type": "null"}]
            else:
                entry["type"] = [entry["type"], "null"]
        properties[name] = entry
    for old, name in RENAMED.items():
        kept = {key: value for key, value in properties[name].items() if key != "default"}
        properties[old] = kept | {"description": f"The old name of {name}.", "deprecated": True}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def main(arguments: list[str]) -> int:
    """Print the schema, or the settings that the environment resolves to."""
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
