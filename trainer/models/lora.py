"""Train small adapters and the head on a frozen base: LoRA (Hu et al., arXiv 2106.09685) with peft.

`apply_lora` inserts the adapters into the layers and does not wrap the model. By default it adapts the attention's
linear layers. A network without attention gets adapters on every linear layer and every ungrouped convolution. The head
stays one module and trains whole: its size depends on the data, so there is no base to adapt. `save_adapter` writes the
adapters. FLOPs follow the 4N convention (trainer/models/model_with_loss.py, `frozen`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from stratlab_spec.models.decoder_config import TEXT_HUB_IDS
from stratlab_spec.models.model_specs import HUB_IDS, nothing_to_adapt
from stratlab_spec.settings.config import Config, ConfigError
from trainer.models.batch_norm import find_batch_norms
from trainer.models.decoder import Decoder
from trainer.models.model_with_loss import ImageClassifier

PRODUCTS = (nn.Linear, Conv1D)
ADAPTABLE = (*PRODUCTS, nn.Conv2d)
SEED_OFFSET = 1_000_003
"""Keeps the adapters' random numbers apart from the base's initial weights."""


def apply_lora(model: ImageClassifier | Decoder, config: Config) -> None:
    """Freeze the model and add adapters to the chosen layers; A is random by the seed, B is zero.

    Raises:
        ConfigError: the model lacks the targets, or has no layer to adapt.
    """
    network = model.network()
    given = [name for name in config.lora_targets.split(",") if name]
    targets = _find_targets(model, given) if given else find_attention(network) or find_products(model)
    if not targets:
        raise ConfigError(nothing_to_adapt(config.model_name))
    torch.manual_seed(config.seed + SEED_OFFSET)
    alpha: Any = config.lora_alpha  # peft declares int, but accepts any number
    adapters = LoraConfig(
        r=config.lora_rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=targets,
        fan_in_fan_out=all(isinstance(network.get_submodule(name), Conv1D) for name in targets),
    )
    try:
        inject_adapter_in_model(adapters, network)
    except ValueError as failure:  # for example, a rank that the groups of a convolution do not divide
        raise ConfigError(
            f"TRAINER_LORA_RANK={config.lora_rank}, TRAINER_LORA_TARGETS={config.lora_targets!r}: {failure} "
            "[SL-lora-rank]"
        ) from failure
    for module in network.modules():
        # the model decides the type of products; peft would cast the input to fp32 for each adapter
        if isinstance(module, LoraLayer) and hasattr(module, "cast_input_dtype_enabled"):
            module.cast_input_dtype_enabled = False
    for head in model.heads:
        network.get_submodule(head).requires_grad_(True)
    model.flops_per_sample = model.forward_flops.frozen()


def find_attention(network: nn.Module) -> list[str]:
    """Return full names of the linear layers inside modules named attention: q, k, v and the output."""

    def inside_attention(name: str) -> bool:
        return any("attn" in part or "attention" in part for part in name.lower().split("."))

    return [n for n, m in network.named_modules() if isinstance(m, PRODUCTS) and inside_attention(n)]


def find_products(model: ImageClassifier | Decoder) -> list[str]:
    """Return full names of all linear and ungrouped convolution layers except the heads."""
    return [name for name in _adaptable(model.network()) if not _is_in(name, model.heads)]


def save_adapter(
    state: dict[str, Tensor], model: ImageClassifier | Decoder, config: Config, folder: Path
) -> None:
    """Write adapters, head and batch norm in peft's format; call it on one rank.

    Batch norm is included because its statistics changed. `peft.PeftModel.from_pretrained(base, folder)` gives the same
    logits if `base` is the model that training started from, with as many classes.

    Args:
        state: the whole model's, by the names of `build_model`.
    """
    prefix = f"{model.core}." if model.core else ""
    network = model.network()
    whole = [*model.heads, *find_batch_norms(network)]
    kept = {}
    for name, tensor in state.items():
        inside = name.removeprefix(prefix)
        if ".lora_" in inside or _is_in(inside.rpartition(".")[0], whole):
            file_name = f"base_model.model.{inside.replace('.default.', '.')}"
            kept[file_name] = tensor.detach().cpu().contiguous().clone()
    empty = [name for name, tensor in kept.items() if tensor.numel() == 0]
    assert kept and not empty, f"not the whole state: {empty}"  # sharded modules give empty tensors
    folder.mkdir(parents=True, exist_ok=True)
    adapters = next(m for m in model.modules() if isinstance(m, LoraLayer))
    settings: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": getattr(model, "peft_task", None),
        "base_model_name_or_path": config.model_path
        or (HUB_IDS | TEXT_HUB_IDS).get(config.model, config.model),
        "inference_mode": True,
        "r": adapters.r["default"],
        "lora_alpha": adapters.lora_alpha["default"],
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": getattr(adapters, "fan_in_fan_out", False),
        "target_modules": sorted(n for n, m in network.named_modules() if isinstance(m, LoraLayer)),
        "modules_to_save": whole or None,
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    save_file(kept, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _adaptable(network: nn.Module) -> list[str]:
    return [
        n for n, m in network.named_modules() if isinstance(m, ADAPTABLE) and getattr(m, "groups", 1) == 1
    ]


def _is_in(name: str, modules: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{module}.") for module in modules)


def _find_targets(model: ImageClassifier | Decoder, given: list[str]) -> list[str]:
    network = model.network()
    names = _adaptable(network)
    targets: list[str] = []
    problems = []
    for target in given:
        found = [name for name in names if f".{name}".endswith(f".{target}")]
        targets += found
        if not found:
            kinds = sorted({name.rpartition(".")[2] for name in names})
            problems.append(
                f"TRAINER_LORA_TARGETS={target!r} matches no linear or ungrouped convolution layer; "
                f"use some of {', '.join(kinds[:12])} [SL-lora-target-absent]"
            )
        elif any(_is_in(name, model.heads) for name in found):
            problems.append(
                f"TRAINER_LORA_TARGETS={target!r} is in the head, which LoRA trains whole; remove this target "
                "[SL-lora-target-head]"
            )
    if problems:
        raise ConfigError(problems)
    return targets
