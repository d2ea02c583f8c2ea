"""What other programs and papers call what this lab has under another name: refused, with the lab's own name.

Nothing is translated silently: `fsdp` is PyTorch's and `zero3` DeepSpeed's (elsewhere both are FSDP), and a batch size
is of one process here, of all of them there.
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path

from trainer.settings.fields import MODELS as OURS
from trainer.settings.network_table import FINETUNED, FINETUNED_NETWORKS
from trainer.settings.size_table import SIZES

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
MODELS = {
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


PLAIN = {_plain(name): ours for name, ours in MODELS.items()} | {_plain(name): name for name in OURS}


def describe_for_tools() -> str:
    """JSON: setting elsewhere -> what to do instead."""
    return json.dumps(SETTINGS_ELSEWHERE, indent=1) + "\n"


if __name__ == "__main__":  # make schema
    Path(sys.argv[1]).write_text(describe_for_tools())
