"""Every setting of a run. The one place that reads TRAINER_* variables, and the source of the charts' schema.

    TRAINER_STRATEGY=ddp TRAINER_RUN=try python -m trainer.config            # show the resolved settings
    python -m trainer.config --schema                                        # JSON schema of `run.config`

A misspelt name is an error that names the nearest setting. pydantic-settings is not used: with a prefix and
extra="forbid" it ignores unknown variables silently (pydantic-settings 2.16).
"""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

PREFIX = "TRAINER_"

Strategy = Literal["single", "ddp", "fsdp", "zero2"]
Model = Literal["vit_tiny", "vit_small", "vit_base", "vit_large", "vit_huge", "cnn"]


class ConfigError(ValueError):
    """What the user typed cannot run. `problems` holds one sentence per broken rule."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def _set_by_chart(description: str, **constraints: Any) -> Any:
    """A field that the chart fills from the release, so that `run.config` must not name it."""
    return Field(description=description, json_schema_extra={"set_by_chart": True}, **constraints)


class Config(BaseModel):
    """One run, as typed by the user; nothing derived from the machine is in here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # identity
    run: str = _set_by_chart("Name of the run: the Helm release.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    results: str = _set_by_chart("Folder of the results volume.", default="results", min_length=1)
    image: str = _set_by_chart("Image that runs, for the record.", default="")
    comparison: str = Field(
        default="default",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Runs meant to be compared: one folder on the volume, one MLflow experiment.",
    )
    seed: int = Field(default=0, ge=0, description="Seeds initial weights and data order.")

    # model
    model: Model = Field(default="vit_tiny", description="Architecture and size.")

    # data
    dataset: str = Field(
        default="digits", min_length=1, description="`digits`, or the hub id of an image data set."
    )
    dataset_path: str = Field(
        default="", description="Local image data set in `datasets` format; used instead of a hub id."
    )
    image_column: str = Field(default="image", min_length=1, description="Column that holds the images.")
    label_column: str = Field(default="label", min_length=1, description="Column that holds the class.")
    image_size: int = Field(
        default=0, ge=0, le=2048, description="Pixels of an edge after resizing; 0 = the model's own."
    )
    validation_fraction: float = Field(
        default=0.1, gt=0, lt=1, description="Share of the training samples kept for validation."
    )
    train_samples: int = Field(default=0, ge=0, description="Use only so many training samples; 0 = all.")

    # strategy
    strategy: Strategy = Field(default="single", description="Where parameters, gradients and state live.")
    dp_replicate: int = Field(
        default=0, ge=0, description="Replicas of the model; 0 = every process the other axes leave."
    )
    dp_shard: int = Field(
        default=0, ge=0, description="Processes that share one replica; 0 = every process left."
    )

    # numerics
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="bf16 = autocast compute; parameters and reductions stay fp32."
    )
    clip_norm: float = Field(default=0.0, ge=0, description="Clip the global gradient norm; 0 = off.")

    # work
    global_batch_size: int = Field(default=64, ge=1, description="Samples of one optimizer step.")
    micro_batch_size: int = Field(default=32, ge=1, description="Samples of one forward pass of one process.")
    epochs: int = Field(default=1, ge=1, description="Passes over the training samples.")
    steps: int = Field(default=0, ge=0, description="Optimizer steps, instead of epochs; 0 = by epochs.")
    optimizer: Literal["adamw", "sgd"] = Field(default="adamw", description="Optimizer.")
    lr: float = Field(default=1e-3, gt=0, description="Peak learning rate.")
    weight_decay: float = Field(default=0.01, ge=0, description="Weight decay.")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="Course of the learning rate after warm-up; the last two end at 0."
    )
    warmup_steps: int = Field(default=0, ge=0, description="Steps of linear warm-up.")

    # profile
    profile_first_step: int = Field(default=10, ge=1, description="First step that is recorded.")
    profile_warmup: int = Field(default=1, ge=0, description="Profiled but discarded steps before it.")
    profile_steps: int = Field(default=3, ge=0, description="Recorded steps; 0 = no profile.")
    profile_shapes: bool = Field(default=False, description="Record tensor shapes.")
    profile_memory: bool = Field(default=True, description="Record allocations.")

    # keep
    evaluate_every: int = Field(default=0, ge=0, description="Steps between validations; 0 = once per epoch.")
    log_every: int = Field(default=10, ge=1, description="Steps between writes of the metrics.")

    # safety
    collective_timeout_s: int = Field(default=600, ge=10, description="A collective that hangs fails then.")
    max_attempts: int = Field(default=3, ge=1, description="Starts of a pod that reach no new step.")
    deadline_s: int = Field(default=86400, ge=60, description="Longest time from the first start to the end.")

    @model_validator(mode="after")
    def _rules(self) -> Config:
        problems = []
        if self.dataset_path and "dataset" in self.model_fields_set and self.dataset == "digits":
            problems.append(
                "TRAINER_DATASET_PATH: digits is built in, leave out one of dataset, dataset_path"
            )
        if {"epochs", "steps"} <= self.model_fields_set and self.steps:
            problems.append("TRAINER_EPOCHS, TRAINER_STEPS: both say how long to train, give one of them")
        if self.profile_steps and self.profile_first_step <= self.profile_warmup:
            problems.append(
                f"TRAINER_PROFILE_FIRST_STEP={self.profile_first_step}: must be above "
                f"TRAINER_PROFILE_WARMUP={self.profile_warmup}, whose steps come before it"
            )
        if self.steps and self.warmup_steps >= self.steps:
            problems.append(
                f"TRAINER_WARMUP_STEPS={self.warmup_steps}: must be below TRAINER_STEPS={self.steps}"
            )
        if problems:
            raise ConfigError(problems)
        return self

    @property
    def dataset_name(self) -> str:
        """What the data set is called in tables: the last part of its path, or its id."""
        return os.path.basename(os.path.normpath(self.dataset_path)) if self.dataset_path else self.dataset

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Config:
        """Reads the TRAINER_* variables of `env`.

        Raises:
            ConfigError: naming every unknown setting, wrong value and broken rule at once.
        """
        given = {key.removeprefix(PREFIX).lower(): env[key] for key in env if key.startswith(PREFIX)}
        problems = [_unknown(name) for name in sorted(given.keys() - cls.model_fields.keys())]
        known = {name: text for name, text in given.items() if name in cls.model_fields}
        try:
            config = cls.model_validate(known)
        except ValidationError as failure:
            problems += [_sentence(cls, dict(error), known) for error in failure.errors()]
        except ConfigError as failure:
            problems += failure.problems
        if problems:
            raise ConfigError(problems)
        return config


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, Config.model_fields, n=1, cutoff=0.6)
    hint = f", did you mean {PREFIX}{near[0].upper()}?" if near else ""
    return f"{PREFIX}{name.upper()}: unknown setting{hint}"


def _sentence(cls: type[BaseModel], error: dict[str, Any], given: Mapping[str, str]) -> str:
    if isinstance(error.get("ctx", {}).get("error"), ConfigError):  # a rule of the model itself
        return str(error["ctx"]["error"])
    name = str(error["loc"][0])
    allowed = get_args(cls.model_fields[name].annotation)
    wish = f"expected one of {', '.join(map(str, allowed))}" if allowed else error["msg"].lower()
    value = f"={given[name]!r}" if name in given else ""
    return f"{PREFIX}{name.upper()}{value}: {wish}"


def schema() -> dict[str, Any]:
    """JSON schema of `run.config` in the charts' values: every setting but those that the chart fills."""
    whole = Config.model_json_schema()
    properties = {}
    for name, entry in whole["properties"].items():
        if entry.pop("set_by_chart", False):
            continue
        entry.pop("title", None)
        if entry.get("type") == "number":
            # `helm --set lr=0.00001` arrives as a string: Helm's parser does not know exponents or small floats
            limits = {k: entry.pop(k) for k in [*entry] if k not in ("description", "default")}
            text = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?$"}
            entry["anyOf"] = [limits, text]
        properties[name] = entry
    return {"type": "object", "additionalProperties": False, "properties": properties}


def main(arguments: list[str]) -> int:
    """Prints the schema, or the settings that the environment resolves to."""
    if arguments == ["--schema"]:
        print(json.dumps(schema(), indent=2))
        return 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(Config.from_env(os.environ).model_dump_json(indent=2))
    except ConfigError as failure:
        print(failure, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
