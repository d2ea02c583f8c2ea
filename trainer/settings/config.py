"""The settings of a run, read and checked. The one place that reads TRAINER_* variables.

A misspelt name is an error that names the nearest setting. pydantic-settings is not used: with a prefix and
extra="forbid" it ignores unknown variables silently (pydantic-settings 2.16).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError, model_validator

from trainer.settings.config_rules import broken_settings
from trainer.settings.fault import KINDS
from trainer.settings.fields import MODELS, Refusal, Settings
from trainer.settings.names_elsewhere import SETTINGS_ELSEWHERE, hint_of_value

PREFIX = "TRAINER_"


class ConfigError(ValueError):
    """What the user typed cannot run. `problems` holds one sentence per broken rule."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[str]]]:
        """From process to process."""
        return type(self), (self.problems,)


class Config(Settings):
    """One run, as typed by the user; nothing derived from the machine is in here."""

    @model_validator(mode="after")
    def _rules(self) -> Config:
        if problems := broken_settings(self):
            raise ConfigError(problems)
        return self

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Config:
        """Reads the TRAINER_* variables of `env`.

        Raises:
            ConfigError: naming every unknown setting and wrong value; of known and right ones every broken rule.
        """
        typed = [key.removeprefix(PREFIX) for key in env if key.startswith(PREFIX)]
        given = {name.lower(): env[f"{PREFIX}{name}"] for name in typed}
        problems = [_unknown(name) for name in sorted(given.keys() - cls.model_fields.keys())]
        problems += [
            f"{PREFIX}{name}: the name of a variable is all in capital letters [SL-variable-capitals]"
            for name in typed
            if name != name.upper() and name.lower() in cls.model_fields
        ]
        known = {name: text for name, text in given.items() if name in cls.model_fields}
        try:
            config = cls.model_validate(known)
        except ValidationError as failure:
            told = failure.errors()
            for error in told:
                cause = error.get("ctx", {}).get("error")
                if cause is not None and not isinstance(cause, (ConfigError, Refusal)):
                    raise cause from failure  # a bug of ours: pydantic takes any ValueError for an answer
            problems += [_sentence(cls, dict(error), known) for error in told]
        except ConfigError as failure:
            problems += failure.problems
        if problems:
            raise ConfigError(problems)
        return config


HUB_ID = "google/vit-base-patch16-224"
NAME = "expected letters, digits, '.', '_' and '-', with a letter or a digit first"
PATTERNS = {
    "run": NAME,
    "comparison": NAME,
    "activation_checkpointing": "expected none, selective, blocks, every_2 to every_999",
    "lora_targets": "expected names of modules separated by commas, without blanks",
    "zeropp": "expected parts separated by commas, without blanks",
    "fault": f"expected kind@step[:rank], several with commas, each once or, with ! behind it, in every attempt; "
    f"kinds: {', '.join(KINDS)}",
}
"""What a setting's pattern allows, in words."""


def describe_error(error: Mapping[str, Any]) -> str:
    """What pydantic says of one value, or a validator of ours. A pattern in it keeps its capital letters."""
    sentence = str(error["msg"]).removeprefix("Value error, ")
    return sentence[:1].lower() + sentence[1:]


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, Config.model_fields, n=1, cutoff=0.6)
    hint = f", did you mean {PREFIX}{near[0].upper()}?" if near else ""
    if said := SETTINGS_ELSEWHERE.get(name):
        hint = f"; {said}"
    return f"{PREFIX}{name.upper()}: unknown setting{hint} [SL-setting-unknown]"


def _sentence(cls: type[BaseModel], error: dict[str, Any], given: Mapping[str, str]) -> str:
    if isinstance(error.get("ctx", {}).get("error"), ConfigError):  # a rule of the model itself
        return str(error["ctx"]["error"])
    name = str(error["loc"][0])
    allowed = get_args(cls.model_fields[name].annotation)
    wish = f"expected one of {', '.join(map(str, allowed))}" if allowed else describe_error(error)
    if name == "model":
        wish = (
            f"expected one of the {len(MODELS)} in README.md (Models and data), or a hub id such as {HUB_ID}"
        )
    if error["type"] == "string_pattern_mismatch":
        wish = PATTERNS.get(name, wish)
    value = f"={given[name]!r}" if name in given else ""
    return (
        f"{PREFIX}{name.upper()}{value}: {wish}{hint_of_value(name, given.get(name, ''))} [SL-setting-value]"
    )
