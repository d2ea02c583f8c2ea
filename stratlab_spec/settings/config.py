"""The settings of a run, read and checked. The one place that reads TRAINER_* variables.

A misspelt name is an error that names the nearest setting. pydantic-settings is not used: with a prefix and
extra="forbid" it ignores unknown variables silently (pydantic-settings 2.16).

What other programs and papers call what this lab has under another name: refused, with the lab's own name.

Nothing is translated silently: `fsdp` is PyTorch's and `zero3` DeepSpeed's (elsewhere both are FSDP), and a batch size
is of one process here, of all of them there.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError, model_validator

from stratlab_spec.registry import FINETUNED, FINETUNED_NETWORKS, SIZES
from stratlab_spec.settings.fields import MODELS, Refusal, Settings
from stratlab_spec.settings.fields import MODELS as OURS
from stratlab_spec.settings.rules import broken_settings
from stratlab_spec.settings.values import KINDS

MICRO = (
    "the samples of one forward pass are TRAINER_MICRO_BATCH_SIZE, those of an update TRAINER_GLOBAL_BATCH_SIZE, and "
    "the accumulation follows from both"
)
SETTINGS_ELSEWHERE = {
    **dict.fromkeys(
        (
            *(
                "batch_size",
                "train_batch_size",
                "train_micro_batch_size_per_gpu",
                "per_device_train_batch_size",
            ),
            *("gradient_accumulation_steps", "grad_accum_steps"),
        ),
        MICRO,
    ),
    **dict.fromkeys(("learning_rate", "base_lr"), "it is called TRAINER_LR"),
    **dict.fromkeys(("model_type", "model_name"), "it is called TRAINER_MODEL"),
    **dict.fromkeys(("num_epochs", "num_train_epochs"), "it is called TRAINER_EPOCHS"),
    **dict.fromkeys(("max_steps", "num_steps"), "it is called TRAINER_STEPS"),
    **dict.fromkeys(
        ("enable_gradient_checkpointing", "gradient_checkpointing", "grad_checkpointing"),
        "it is called TRAINER_ACTIVATION_CHECKPOINTING (none, selective, blocks, every_2)",
    ),
    **dict.fromkeys(("gradient_clipping", "max_grad_norm"), "it is called TRAINER_CLIP_NORM"),
    **dict.fromkeys(("r", "lora_r"), "it is called TRAINER_LORA_RANK"),
    **dict.fromkeys(("target_modules", "lora_target_modules"), "it is called TRAINER_LORA_TARGETS"),
    **dict.fromkeys(
        ("bf16", "fp16", "mixed_precision"), "it is called TRAINER_PRECISION (bf16, fp16, fp32, auto)"
    ),
    **dict.fromkeys(
        ("sync_bn", "sync_batchnorm", "sync_batch_norm"), "it is TRAINER_BATCH_NORM=synchronised"
    ),
    "betas": "they are TRAINER_BETA1 and TRAINER_BETA2",
    **dict.fromkeys(
        (
            *("adam_beta1", "adam_beta2", "adam_epsilon", "adam_eps", "epsilon"),
            *("adamw_beta1", "adamw_beta2", "adamw_epsilon", "adamw_eps"),
        ),
        "AdamW has TRAINER_BETA1, TRAINER_BETA2 and TRAINER_EPS",
    ),
    "sgd_momentum": "it is called TRAINER_MOMENTUM",
    **dict.fromkeys(
        ("num_gpus", "gpus_per_node", "nproc_per_node", "num_nodes", "nnodes"),
        "how many processes there are is the chart's: run.nodes, run.processesPerNode",
    ),
    **dict.fromkeys(("num_layers", "num_hidden_layers", "depth"), "it is called TRAINER_MODEL_LAYERS"),
    **dict.fromkeys(("hidden_size", "embed_dim", "d_model"), "it is called TRAINER_MODEL_HIDDEN"),
    **dict.fromkeys(("num_heads", "num_attention_heads"), "it is called TRAINER_MODEL_HEADS"),
    "num_key_value_heads": "it is called TRAINER_MODEL_KV_HEADS",
    **dict.fromkeys(("intermediate_size", "mlp_dim", "d_ff"), "it is called TRAINER_MODEL_INTERMEDIATE"),
    "model_size": "a size is a preset in TRAINER_MODEL (vit_tiny, vit_small), or what differs from one: "
    + ", ".join(f"TRAINER_{name.upper()}" for name in SIZES),
    "patch_size": "it is called TRAINER_MODEL_PATCH",
    "vocab_size": "it is called TRAINER_MODEL_VOCAB",
    **dict.fromkeys(("teacher_model", "teacher_path", "teacher_name"), "it is called TRAINER_TEACHER"),
    **dict.fromkeys(
        ("temperature", "distill_temperature", "distillation_temperature"),
        "it is called TRAINER_DISTIL_TEMPERATURE",
    ),
    **dict.fromkeys(
        ("distill_weight", "distillation_weight", "distillation_alpha"),
        "the teacher's share of the loss is TRAINER_DISTIL_WEIGHT",
    ),
    "master_port": "the launcher's rendezvous is the chart's",
}
"""Setting elsewhere -> what to do instead."""

STRATEGIES = {
    **dict.fromkeys(
        ("fsdp_stage1", "deepspeed_stage1", "stage1", "zero_1", "zero-1"), ("zero1", "DeepSpeed's stage 1")
    ),
    **dict.fromkeys(
        ("fsdp_stage2", "deepspeed_stage2", "stage2", "zero_2", "zero-2"), ("zero2", "DeepSpeed's stage 2")
    ),
    **dict.fromkeys(
        ("fsdp_stage3", "deepspeed_stage3", "stage3", "zero_3", "zero-3"), ("zero3", "DeepSpeed's stage 3")
    ),
    **dict.fromkeys(("zero++", "zeropp_stage3", "zero_pp"), ("zeropp", "ZeRO++")),
    **dict.fromkeys(("fsdp2", "full_shard", "fully_shard"), ("fsdp", "PyTorch's fully_shard")),
    **dict.fromkeys(("hybrid_shard", "hsdp2"), ("hsdp", "PyTorch's fully_shard in replicas")),
    **dict.fromkeys(("dp", "data_parallel", "standard_ddp"), ("ddp", "PyTorch's DistributedDataParallel")),
    **dict.fromkeys(
        ("2d_pipeline", "3d_parallelism", "4d_parallelism", "5d_parallelism"),
        ("nd", "a layout of several dimensions"),
    ),
}
MODELS_ELSEWHERE = {
    **dict.fromkeys(("cnn-lstm", "cnnlstm", "CNN-LSTM"), "cnn_lstm"),
    **dict.fromkeys(
        ("mobilenet_v3", "mobilenetv3", "mobilenet_v3_large", "mobilenet_v2", "MobileNet"), "mobilenet"
    ),
    **dict.fromkeys(("efficientnet_b0", "efficientnet-b0", "EfficientNet"), "efficientnet"),
    **dict.fromkeys(("vgg16", "vgg-16", "VGG"), "vgg"),
    **dict.fromkeys(("resnet50", "resnet-50", "ResNet"), "resnet"),
    **dict.fromkeys(("CNN", "simple_cnn", "basic_cnn"), "cnn"),
    **dict.fromkeys(("Ensemble", "ensemble_model"), "ensemble"),
    **dict.fromkeys(("vit-base", "vit_b_16", "vit"), "vit_base"),
    **dict.fromkeys(("vit-huge", "vit_h_14"), "vit_huge"),
    **dict.fromkeys(("Qwen2.5-3B", "qwen3b", "Qwen2.5-3B-Instruct"), "qwen2.5-3b"),
}
MOBILENET_V2 = "; it is version 3, large; version 2 is on the hub: google/mobilenet_v2_1.0_224"

DATASETS = ("digits", "synthetic", "cifar100", "food101", "arithmetic", "metamathqa")
"""Those that have a short name here; any other name is the hub's, which alone can refuse it."""


def hint_of_dataset(name: str) -> str:
    """To be put behind the sentence that no such data set is to be had."""
    near = difflib.get_close_matches(name.lower(), DATASETS, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def hint_of_value(setting: str, value: str) -> str:
    """To be put behind the sentence that refuses this value; "" = nothing is known of it."""
    if setting == "strategy" and value in STRATEGIES:
        ours, what = STRATEGIES[value]
        return f"; {what} is called {ours}"
    return _hint_of_model(value) if setting == "model" else ""


def _hint_of_model(value: str) -> str:
    found = _find_model(value)
    if found:
        return f"; the network is called {found}{_say_version(value)}"
    plain = _plain(value)
    body = _find_model(plain.removesuffix(FINETUNED)) if plain.endswith(FINETUNED) else ""
    if f"{body}{FINETUNED}" in FINETUNED_NETWORKS:
        return f"; the network with its published weights is called {body}{FINETUNED}{_say_version(value)}"
    if body:
        return (
            f"; no {FINETUNED} name has the network {body}, only {', '.join(FINETUNED_NETWORKS)}; "
            f"TRAINER_MODEL={body} is the network itself"
        )
    near = dict.fromkeys(
        PLAIN[name]
        for name in difflib.get_close_matches(plain, PLAIN, n=5, cutoff=0.7)
        if _digits(name) == _digits(plain)  # resnet101 is no resnet50
    )
    return f"; did you mean {' or '.join(near)}?{_say_version(value)}" if near else ""


def _say_version(name: str) -> str:
    plain = _plain(name).replace("_", "")
    return MOBILENET_V2 if plain.startswith("mobilenetv2") else ""


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))


def _find_model(name: str) -> str:
    """Ours, whatever its capitals and its hyphens; "" = none."""
    return PLAIN.get(_plain(name), "")


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")


PLAIN = {_plain(name): ours for name, ours in MODELS_ELSEWHERE.items()} | {
    _plain(name): name for name in OURS
}


PREFIX = "TRAINER_"


class ConfigError(ValueError):
    """What the user typed cannot run. `problems` holds one sentence per broken rule.

    Args:
        problems: or the only one.
    """

    def __init__(self, problems: str | list[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else problems
        super().__init__("\n".join(self.problems))

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
