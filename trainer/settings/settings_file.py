"""A run's settings from a YAML file and from `key=value`: the TRAINER_* variables that settings/config.py reads.

Two forms of a file: the settings themselves (`model: vit_tiny`), or the values of a chart, of which `run.config`,
`run.processesPerNode` and `run.env` are a run's and all else is a cluster's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainer.settings.config import PREFIX, ConfigError

NOTHING = ("null", "~", "Null", "NULL")
"""YAML's words for no value: the setting is as if nobody had named it."""
OF_A_RUN = ("config", "processesPerNode", "env")


@dataclass(frozen=True)
class Given:
    """What a file says.

    Attributes:
        settings: setting -> text; None takes the setting back.
        processes: of this machine, "" where the file does not say.
        variables: further ones of the environment.
        left_out: keys of a chart's values that mean something to a cluster alone.
    """

    settings: dict[str, str | None]
    processes: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


class _Text(yaml.SafeLoader):
    """Every value as it was typed: `on` stays on, 1e-3 stays 1e-3; a name that is there twice is an error."""


def _build_mapping(loader: _Text, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in node.value:
        name = loader.construct_object(key, deep=True)
        if name in found:
            raise yaml.MarkedYAMLError(problem=f"{name} is there twice", problem_mark=key.start_mark)
        found[name] = loader.construct_object(value, deep=True)
    return found


_Text.yaml_implicit_resolvers = {}
_Text.add_constructor("tag:yaml.org,2002:map", _build_mapping)


def read_settings_file(path: Path) -> Given:
    """The settings in `path`.

    Raises:
        ConfigError: it cannot be read, is no YAML, or holds what is no setting; everything that is wrong at once.
    """
    try:
        content = yaml.load(path.read_text(), Loader=_Text)
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError([f"--config {path}: {getattr(failure, 'strerror', None) or failure}"]) from None
    except yaml.YAMLError as failure:
        raise ConfigError([f"--config {path}: no YAML: {_describe(failure)}"]) from None
    if content is None:
        return Given({})
    if not isinstance(content, Mapping):
        raise ConfigError([f"--config {path}: expected names and values, such as `model: vit_tiny`"])
    if isinstance(content.get("run"), Mapping):
        return _read_values(path, content)
    return Given(_read_settings(path, content, ""))


def _read_values(path: Path, content: Mapping[str, Any]) -> Given:
    """Of a chart's values. Their keys are the schema's business; here only what a run takes of them is looked at."""
    run = content["run"]
    left_out = [key for key in content if key != "run"] + [f"run.{key}" for key in run if key not in OF_A_RUN]
    config, entries = run.get("config") or {}, run.get("env") or []
    if not isinstance(config, Mapping):
        raise ConfigError([f"--config {path}: run.config: expected names and values"])
    if not all(isinstance(each, Mapping) and {"name", "value"} <= each.keys() for each in entries):
        raise ConfigError([f"--config {path}: run.env: expected a list of name and value"])
    variables = {str(each["name"]): str(each["value"]) for each in entries}
    settings = _read_settings(path, config, "run.config.")
    return Given(settings, str(run.get("processesPerNode", "")), variables, tuple(left_out))


def _read_settings(path: Path, found: Mapping[str, Any], prefix: str) -> dict[str, str | None]:
    problems = [
        f"--config {path}: {prefix}{name}: expected one value, not {'a list' if isinstance(value, list) else 'names'}"
        for name, value in found.items()
        if not isinstance(value, str)
    ]
    if problems:
        raise ConfigError(problems)
    return {str(name): None if value in NOTHING else value for name, value in found.items()}


def _describe(failure: yaml.YAMLError) -> str:
    problem, mark = getattr(failure, "problem", None), getattr(failure, "problem_mark", None)
    return (problem or str(failure)) + (f" in line {mark.line + 1}" if mark else "")


def read_pairs(pairs: Iterable[str]) -> dict[str, str | None]:
    """`key=value`, as typed behind --set; `run.config.key=value` means the same.

    Raises:
        ConfigError: naming each that is no pair.
    """
    found: dict[str, str | None] = {}
    problems = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip().removeprefix("run.config.")
        if not equals or not name:
            problems.append(f"--set {pair}: expected key=value, such as lr=0.01")
        found[name] = None if value in NOTHING else value
    if problems:
        raise ConfigError(problems)
    return found


def build_variables(settings: Mapping[str, str | None]) -> dict[str, str]:
    """The TRAINER_* variables of `settings`."""
    return {f"{PREFIX}{name.upper()}": value for name, value in settings.items() if value is not None}
