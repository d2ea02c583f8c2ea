"""The settings of a run, read from TRAINER_* variables and checked. No other module reads these variables.

A misspelt name is an error that names the nearest setting. pydantic-settings is not used: with a prefix and
extra="forbid" it ignores unknown variables silently (pydantic-settings 2.16).

Names that other programs and papers use are rejected with the lab's own name, not translated silently. `fsdp` is
PyTorch's and `zero3` DeepSpeed's (elsewhere both are FSDP), and a batch size counts one process here, all of them
there.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, MutableMapping
from typing import Any, get_args

from pydantic import ValidationError, model_validator

from stratlab_spec.registry import FINETUNED, FINETUNED_NETWORKS, SIZES
from stratlab_spec.settings.faults import KINDS
from stratlab_spec.settings.fields import MODELS, Refusal, Settings
from stratlab_spec.settings.old_names import RENAMED, take_new_names
from stratlab_spec.settings.rules import broken_settings

_CALLED = (
    ("lr", "learning_rate base_lr", ""),
    ("model", "model_name_or_path", "model_type model_name"),
    ("dataset", "dataset_name", ""),
    ("seq_len", "max_seq_length max_length block_size", ""),
    ("micro_batch_size", "batch_size_per_gpu per_device_train_batch_size train_micro_batch_size_per_gpu", ""),
    ("epochs", "num_train_epochs num_epochs", ""),
    ("steps", "max_steps num_steps", ""),
    ("clip_norm", "max_grad_norm gradient_clipping", ""),
    ("label_smoothing", "label_smoothing_factor", ""),
    ("beta1", "adam_beta1", ""),
    ("beta2", "adam_beta2", ""),
    ("eps", "adam_epsilon", ""),
    ("momentum", "", "sgd_momentum"),
    ("lora_rank", "lora_r r", ""),
    ("lora_targets", "lora_target_modules target_modules", ""),
    ("log_every", "logging_steps", ""),
    ("evaluate_every", "eval_steps", ""),
    ("checkpoint_every", "save_steps", ""),
    ("checkpoint_keep", "save_total_limit", ""),
    ("model_layers", "", "num_layers num_hidden_layers depth"),
    ("model_hidden", "", "hidden_size embed_dim d_model"),
    ("model_heads", "", "num_heads num_attention_heads"),
    ("model_kv_heads", "", "num_key_value_heads"),
    ("model_intermediate", "", "intermediate_size mlp_dim d_ff"),
    ("model_patch", "", "patch_size"),
    ("model_vocab", "", "vocab_size"),
    ("teacher", "", "teacher_model teacher_path teacher_name"),
    ("distill_temperature", "", "temperature distillation_temperature"),
)
"""A setting, its names elsewhere that `stratlab run` takes as it, and those that are only explained."""
TAKEN_ELSEWHERE = {name: ours for ours, taken, _ in _CALLED for name in taken.split()}
"""Name elsewhere -> the setting that `stratlab run` takes it as."""
_EXPLAINED = (
    (
        "batch_size train_batch_size train_micro_batch_size_per_gpu per_device_train_batch_size "
        "gradient_accumulation_steps grad_accum_steps",
        "the samples of one forward pass are TRAINER_MICRO_BATCH_SIZE, those of an update "
        "TRAINER_GLOBAL_BATCH_SIZE, and the accumulation follows from both",
    ),
    (
        "enable_gradient_checkpointing gradient_checkpointing grad_checkpointing",
        "it is called TRAINER_ACTIVATION_CHECKPOINTING (none, selective, blocks, every_2)",
    ),
    ("bf16 fp16 mixed_precision", "it is called TRAINER_PRECISION (bf16, fp16, fp32, auto)"),
    ("sync_bn sync_batchnorm sync_batch_norm", "it is TRAINER_BATCH_NORM=synchronised"),
    ("betas", "they are TRAINER_BETA1 and TRAINER_BETA2"),
    (
        "adam_beta1 adam_beta2 adam_epsilon adam_eps epsilon adamw_beta1 adamw_beta2 adamw_epsilon adamw_eps",
        "AdamW has TRAINER_BETA1, TRAINER_BETA2 and TRAINER_EPS",
    ),
    (
        "num_gpus gpus_per_node nproc_per_node num_nodes nnodes",
        "how many processes there are is the chart's: run.nodes, run.processesPerNode",
    ),
    (
        "model_size",
        "a size is a preset in TRAINER_MODEL (vit_tiny, vit_small), or what differs from one: "
        + ", ".join(f"TRAINER_{name.upper()}" for name in SIZES),
    ),
    (
        "distill_weight distillation_weight distillation_alpha",
        "the teacher's share of the loss is TRAINER_DISTILL_ALPHA",
    ),
    ("master_port", "the launcher's rendezvous is the chart's"),
)
SETTINGS_ELSEWHERE = {
    name: f"it is called TRAINER_{ours.upper()}"
    for ours, taken, explained in _CALLED
    for name in f"{taken} {explained}".split()
} | {name: instead for names, instead in _EXPLAINED for name in names.split()}
"""Setting elsewhere -> what to do instead."""

STRATEGIES_ELSEWHERE = {
    name: (ours, what)
    for ours, what, names in (
        ("zero1", "DeepSpeed's stage 1", "fsdp_stage1 deepspeed_stage1 stage1 zero_1 zero-1"),
        ("zero2", "DeepSpeed's stage 2", "fsdp_stage2 deepspeed_stage2 stage2 zero_2 zero-2"),
        ("zero3", "DeepSpeed's stage 3", "fsdp_stage3 deepspeed_stage3 stage3 zero_3 zero-3"),
        ("zeropp", "ZeRO++", "zero++ zeropp_stage3 zero_pp"),
        ("fsdp", "PyTorch's fully_shard", "fsdp2 full_shard fully_shard"),
        ("hsdp", "PyTorch's fully_shard in replicas", "hybrid_shard hsdp2"),
        ("ddp", "PyTorch's DistributedDataParallel", "dp data_parallel standard_ddp"),
        ("nd", "a layout of several dimensions", "2d_pipeline 3d_parallelism 4d_parallelism 5d_parallelism"),
    )
    for name in names.split()
}
MODELS_ELSEWHERE = {
    name: ours
    for ours, names in {
        "cnn_lstm": "cnn-lstm cnnlstm CNN-LSTM",
        "mobilenet": "mobilenet_v3 mobilenetv3 mobilenet_v3_large mobilenet_v2 MobileNet",
        "efficientnet": "efficientnet_b0 efficientnet-b0 EfficientNet",
        "vgg": "vgg16 vgg-16 VGG",
        "resnet": "resnet50 resnet-50 ResNet",
        "cnn": "CNN simple_cnn basic_cnn",
        "ensemble": "Ensemble ensemble_model",
        "vit_base": "vit-base vit_b_16 vit",
        "vit_huge": "vit-huge vit_h_14",
        "qwen2.5-3b": "Qwen2.5-3B qwen3b Qwen2.5-3B-Instruct",
    }.items()
    for name in names.split()
}
MOBILENET_V2 = "; it is version 3, large; version 2 is on the hub: google/mobilenet_v2_1.0_224"

DATASETS = ("digits", "synthetic", "cifar100", "food101", "arithmetic", "metamathqa")
"""Data sets with a short name here; any other name is the hub's, and only the hub can reject it."""


def hint_of_dataset(name: str) -> str:
    """Return the end of a message about an unknown data set."""
    near = difflib.get_close_matches(name.lower(), DATASETS, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def hint_of_value(setting: str, value: str) -> str:
    """Return the end of a message that rejects this value; "" without a hint."""
    if setting == "strategy" and value in STRATEGIES_ELSEWHERE:
        ours, what = STRATEGIES_ELSEWHERE[value]
        return f"; {what} is called {ours}"
    return _hint_of_model(value) if setting == "model" else ""


def _hint_of_model(value: str) -> str:
    plain = _plain(value)
    version = MOBILENET_V2 if plain.replace("_", "").startswith("mobilenetv2") else ""
    if plain in _PLAIN_MODELS:
        return f"; the network is called {_PLAIN_MODELS[plain]}{version}"
    body = _PLAIN_MODELS.get(plain.removesuffix(FINETUNED), "") if plain.endswith(FINETUNED) else ""
    if f"{body}{FINETUNED}" in FINETUNED_NETWORKS:
        return f"; the network with its published weights is called {body}{FINETUNED}{version}"
    if body:
        return (
            f"; no {FINETUNED} name has the network {body}, only {', '.join(FINETUNED_NETWORKS)}; "
            f"TRAINER_MODEL={body} is the network itself"
        )
    near = dict.fromkeys(
        _PLAIN_MODELS[name]
        for name in difflib.get_close_matches(plain, _PLAIN_MODELS, n=5, cutoff=0.7)
        if re.findall(r"\d", name) == re.findall(r"\d", plain)  # resnet101 is not resnet50
    )
    return f"; did you mean {' or '.join(near)}?{version}" if near else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")


_PLAIN_MODELS = {
    _plain(name): ours for name, ours in [*MODELS_ELSEWHERE.items(), *zip(MODELS, MODELS, strict=True)]
}
"""A network's name in small letters and underscores -> ours."""

PREFIX = "TRAINER_"


class ConfigError(ValueError):
    """The given settings cannot run. `problems` holds one sentence per broken rule.

    Args:
        problems: a list, or the only one.
    """

    def __init__(self, problems: str | list[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else problems
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[str]]]:
        """Pickle it for another process."""
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
        """Read the TRAINER_* variables of `env`.

        Raises:
            ConfigError: naming every unknown setting and wrong value; of known and right ones every broken rule.
        """
        typed = [key.removeprefix(PREFIX) for key in env if key.startswith(PREFIX)]
        given = take_new_names({name.lower(): env[f"{PREFIX}{name}"] for name in typed})
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
            for error in failure.errors():
                cause = error.get("ctx", {}).get("error")
                if cause is not None and not isinstance(cause, (ConfigError, Refusal)):
                    raise cause from failure  # a bug of ours: pydantic takes any ValueError for an answer
                problems.append(
                    str(cause) if isinstance(cause, ConfigError) else _describe_value(error, known)
                )
        if problems:
            raise ConfigError(problems)
        return config


def rename_variables(env: MutableMapping[str, str]) -> None:
    """Replace old names of settings by current ones, so that the ranks do not repeat the note."""
    old = {name: env.pop(variable) for name in RENAMED if (variable := f"{PREFIX}{name.upper()}") in env}
    for name, value in take_new_names(old).items():
        env.setdefault(f"{PREFIX}{name.upper()}", value)


HUB_ID = "google/vit-base-patch16-224"
NAME = "expected letters, digits, '.', '_' and '-', with a letter or a digit first"
PATTERNS = {
    "run": NAME,
    "comparison": NAME,
    "activation_checkpointing": "expected none, selective, blocks, every_2 to every_999",
    "lora_targets": "expected names of modules separated by commas, without blanks",
    "text_columns": "expected part=column, several with commas, such as query=instruction,response=output",
    "zeropp": "expected parts separated by commas, without blanks",
    "fault": f"expected kind@step[:rank], several with commas, each once or, with a final !, in every attempt; "
    f"kinds: {', '.join(KINDS)}",
}
"""The texts that a setting's pattern allows, in words."""


def describe_error(error: Mapping[str, Any]) -> str:
    """Return the message of pydantic or of a validator about one value. A pattern in it keeps its capital letters."""
    sentence = str(error["msg"]).removeprefix("Value error, ")
    return sentence[:1].lower() + sentence[1:]


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, Config.model_fields, n=1, cutoff=0.6)
    hint = f", did you mean {PREFIX}{near[0].upper()}?" if near else ""
    if instead := SETTINGS_ELSEWHERE.get(name):
        hint = f"; {instead}"
    return f"{PREFIX}{name.upper()}: unknown setting{hint} [SL-setting-unknown]"


def _describe_value(error: Mapping[str, Any], given: Mapping[str, str]) -> str:
    name = str(error["loc"][0])
    allowed = get_args(Config.model_fields[name].annotation)
    wish = f"expected one of {', '.join(map(str, allowed))}" if allowed else describe_error(error)
    if name == "model":
        wish = f"expected one of the {len(MODELS)} in docs/models.md, or a hub id such as {HUB_ID}"
    if error["type"] == "string_pattern_mismatch":
        wish = PATTERNS.get(name, wish)
    value = f"={given[name]!r}" if name in given else ""
    return (
        f"{PREFIX}{name.upper()}{value}: {wish}{hint_of_value(name, given.get(name, ''))} [SL-setting-value]"
    )
