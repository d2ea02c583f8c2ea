"""Translate settings of other programs: the flags of Hugging Face's Trainer, Accelerate's YAML, DeepSpeed's JSON.

`translate_setting` takes one name with its value, `translate_file` a whole file. A name that means exactly one thing
here is taken, and the caller prints the translation. A name with several meanings is refused with the settings to use
(`SETTINGS_ELSEWHERE` of stratlab_spec/settings/config.py). Names of one setting are those of `TAKEN_ELSEWHERE` there.

Sources: transformers 5.23 `TrainingArguments`, accelerate 1.x `accelerate config`, DeepSpeed 0.19 "Configuration JSON".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from stratlab import UserError
from stratlab_spec.settings.config import STRATEGIES_ELSEWHERE, TAKEN_ELSEWHERE

AUTO = "auto"
"""DeepSpeed's word for a value that Hugging Face's Trainer fills in."""
ACCUMULATION, PROCESSES, NODES, STRATEGY = "accumulation", "processes", "nodes", "strategy"
"""What a name may become besides a setting: parts of the line of `stratlab run`."""


class NotOneThing(UserError):
    """Report a foreign name, or a value of it, that has no single counterpart here."""


@dataclass(frozen=True)
class Counterpart:
    """Define the translation of one foreign name: `setting`, or the settings by value in `values`."""

    setting: str = ""
    values: Mapping[str, Mapping[str, str]] | None = None


def _is(setting: str) -> Counterpart:
    return Counterpart(setting)


def _switch(on: Mapping[str, str], off: Mapping[str, str] | None = None) -> Counterpart:
    """Return the rule of a truth value."""
    off = off or {}
    return Counterpart(
        values={**dict.fromkeys(("true", "1", "yes"), on), **dict.fromkeys(("false", "0", "no"), off)}
    )


_PRECISION = Counterpart(
    values={
        "no": {"precision": "fp32"},
        "fp32": {"precision": "fp32"},
        "bf16": {"precision": "bf16"},
        "fp16": {"precision": "fp16"},
    }
)
_BLOCKS = _switch({"activation_checkpointing": "blocks"}, {"activation_checkpointing": "none"})
_OFFLOAD = {
    "optimizer": Counterpart(values={"cpu": {"offload": "optimizer"}, "none": {}}),
    "parameters": Counterpart(values={"cpu": {"offload": "all"}, "none": {}}),
}
_OPTIMIZER = Counterpart(
    values={
        **{
            name: {"optimizer": "adamw"} for name in ("adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf")
        },
        "sgd": {"optimizer": "sgd"},
    }
)
_SCHEDULE = Counterpart(
    values={
        "linear": {"lr_schedule": "linear"},
        "cosine": {"lr_schedule": "cosine"},
        "constant": {"lr_schedule": "constant"},
        "constant_with_warmup": {"lr_schedule": "constant"},
        "warmupdecaylr": {"lr_schedule": "linear"},
        "warmuplr": {"lr_schedule": "constant"},
        "warmupcosinelr": {"lr_schedule": "cosine"},
    }
)

FLAGS: dict[str, Counterpart] = {
    **{name: _is(setting) for name, setting in TAKEN_ELSEWHERE.items()},
    **dict.fromkeys(("gradient_accumulation_steps", "grad_accum_steps"), _is(ACCUMULATION)),
    "max_steps": Counterpart(setting="steps", values={"-1": {}}),
    "lr_scheduler_type": _SCHEDULE,
    **dict.fromkeys(
        ("gradient_checkpointing", "grad_checkpointing", "enable_gradient_checkpointing"), _BLOCKS
    ),
    "bf16": _switch({"precision": "bf16"}),
    "fp16": _switch({"precision": "fp16"}),
    "mixed_precision": _PRECISION,
    "optim": _OPTIMIZER,
    "torch_compile": _switch({"compile": "true"}, {"compile": "false"}),
    **dict.fromkeys(("num_processes", "num_gpus"), _is(PROCESSES)),
    **dict.fromkeys(("num_machines", "num_nodes", "nnodes"), _is(NODES)),
    **dict.fromkeys(("sync_bn", "sync_batchnorm"), _switch({"batch_norm": "synchronised"})),
}
"""Foreign name -> its rule, for `--set` and for the top level of files."""

WANDB = ("report_to", "wandb_project", "wandb_entity", "wandb_name", "wandb_mode", "wandb_run_id")
"""Names that ask for Weights & Biases."""

DEEPSPEED: dict[str, Counterpart] = {
    "train_batch_size": _is("global_batch_size"),
    "zero_optimization.stage": Counterpart(
        values={"0": {STRATEGY: "ddp"}, **{f"{stage}": {STRATEGY: f"zero{stage}"} for stage in (1, 2, 3)}}
    ),
    "zero_optimization.offload_optimizer.device": _OFFLOAD["optimizer"],
    "zero_optimization.offload_param.device": _OFFLOAD["parameters"],
    "bf16.enabled": FLAGS["bf16"],
    "fp16.enabled": FLAGS["fp16"],
    "optimizer.type": _OPTIMIZER,
    "optimizer.params.lr": _is("lr"),
    "optimizer.params.weight_decay": _is("weight_decay"),
    "optimizer.params.eps": _is("eps"),
    "optimizer.params.betas": _is("betas"),
    "scheduler.type": _SCHEDULE,
    "scheduler.params.warmup_num_steps": _is("warmup_steps"),
}
"""Path in DeepSpeed's JSON -> its rule."""

ACCELERATE: dict[str, Counterpart] = {
    "distributed_type": Counterpart(
        values={
            "no": {STRATEGY: "single"},
            "multi_gpu": {STRATEGY: "ddp"},
            "multi_cpu": {STRATEGY: "ddp"},
            "fsdp": {},
            "deepspeed": {},
        }
    ),
    "fsdp_config.fsdp_sharding_strategy": Counterpart(
        values={
            "full_shard": {STRATEGY: "fsdp"},
            "1": {STRATEGY: "fsdp"},
            "shard_grad_op": {STRATEGY: "fsdp", "reshard_after_forward": "off"},
            "2": {STRATEGY: "fsdp", "reshard_after_forward": "off"},
            "no_shard": {STRATEGY: "ddp"},
            "hybrid_shard": {STRATEGY: "hsdp"},
        }
    ),
    "fsdp_config.fsdp_reshard_after_forward": _switch(
        {STRATEGY: "fsdp"}, {STRATEGY: "fsdp", "reshard_after_forward": "off"}
    ),
    "fsdp_config.fsdp_version": Counterpart(values={"2": {STRATEGY: "fsdp"}, "1": {}}),
    "fsdp_config.fsdp_offload_params": _switch({"offload": "all"}),
    "fsdp_config.fsdp_activation_checkpointing": _BLOCKS,
    "deepspeed_config.zero_stage": DEEPSPEED["zero_optimization.stage"],
    "deepspeed_config.gradient_accumulation_steps": _is(ACCUMULATION),
    "deepspeed_config.gradient_clipping": _is("clip_norm"),
    "deepspeed_config.offload_optimizer_device": _OFFLOAD["optimizer"],
    "deepspeed_config.offload_param_device": _OFFLOAD["parameters"],
}
"""Path in Accelerate's YAML -> its rule."""


@dataclass
class Translated:
    """Collect the translations of foreign names.

    Attributes:
        parts: setting, or one of ACCUMULATION, PROCESSES, NODES, STRATEGY -> text.
        became: foreign name=value -> what it became, for the user.
        unused: names of a file without an effect here.
    """

    parts: dict[str, str] = field(default_factory=dict)
    became: dict[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)

    def take(self, origin: str, parts: Mapping[str, str]) -> None:
        """Add `parts`, which come from `origin`, a foreign `name=value`.

        Raises:
            NotOneThing: another name has asked for another value of the same setting.
        """
        for name, value in parts.items():
            if self.parts.get(name, value) != value:
                raise NotOneThing(
                    f"{origin}: {name} is {self.parts[name]} by another name, and {value} by this name; "
                    "keep one of them [SL-foreign-conflict]"
                )
        self.parts |= parts
        self.became[origin] = (
            ", ".join(f"{name}={value}" for name, value in parts.items()) or "nothing to change"
        )


def translate_setting(name: str, value: str) -> dict[str, str] | None:
    """Return the translation of the foreign `name=value` becomes; None = the name is not in the table.

    Raises:
        NotOneThing: the value has no counterpart, or the name asks for Weights & Biases.
    """
    plain = name.lower().lstrip("-").replace("-", "_")
    if plain in WANDB:
        return _answer_wandb(name, plain, value)
    rule = FLAGS.get(plain)
    return None if rule is None else _apply_rule(rule, name, value)


def _answer_wandb(name: str, plain: str, value: str) -> dict[str, str]:
    if plain == "report_to" and value.lower() in ("mlflow", "none", "[]", ""):
        return {}
    if plain == "report_to" and value.lower() == "tensorboard":
        return {"tensorboard": "true"}
    raise NotOneThing(
        f"{name}={value}: metrics go to MLflow while the run trains; leave the setting out. "
        "`stratlab export wandb RUN` copies finished runs to Weights & Biases [SL-foreign-tracker]"
    )


def _apply_rule(rule: Counterpart, name: str, value: str) -> dict[str, str]:
    plain = value.strip().lower()
    if rule.values and plain in rule.values:
        return dict(rule.values[plain])
    if rule.setting == "betas":
        first, _, second = value.strip("[]() ").partition(",")
        return {"beta1": first.strip(), "beta2": second.strip()}
    if rule.setting:
        return {rule.setting: value.strip()}
    allowed = ", ".join(rule.values or ())
    raise NotOneThing(f"{name}={value}: expected one of {allowed} [SL-foreign-value]")


def name_strategy(name: str) -> str:
    """Return the lab's name of a strategy that the user may call by another name."""
    ours, _ = STRATEGIES_ELSEWHERE.get(name.lower(), (name, ""))
    return ours


def translate_file(path: Path) -> Translated:
    """Translate a file of DeepSpeed (JSON) or Accelerate (YAML).

    Raises:
        UserError: the file cannot be read, or has a value without a counterpart.
    """
    try:
        text = path.read_text()
        content: Any = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, ValueError, yaml.YAMLError) as failure:
        cause = getattr(failure, "strerror", None) or failure
        raise UserError(f"--config {path}: {cause} [SL-foreign-file]") from None
    if not isinstance(content, dict):
        raise UserError(
            f"--config {path}: expected DeepSpeed's JSON or Accelerate's YAML: names with values "
            "[SL-foreign-file-shape]"
        )
    rules = (DEEPSPEED if path.suffix == ".json" else ACCELERATE) | FLAGS
    found = Translated()
    for name, value in _flatten(content, ""):
        rule = rules.get(name)
        if rule is None or name == "r":
            found.unused.append(name)
        elif value.lower() != AUTO:
            found.take(f"{name}={value}", _apply_rule(rule, name, value))
    return found


def _flatten(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield `a.b` with its value as text; a null is left out."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield f"{prefix}{key}", text
