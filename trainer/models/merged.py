"""A model's weights with the adapters added to them."""

from __future__ import annotations

from torch import Tensor

from trainer.models.classifier import ImageClassifier
from trainer.models.decoder import Decoder
from trainer.settings.config import Config


def merge_adapters(
    classifier: ImageClassifier | Decoder, state: dict[str, Tensor], config: Config
) -> dict[str, Tensor]:
    """The state by the names inside the core, each adapter added to its weight: W + alpha / rank * B A."""
    prefix = f"{classifier.core}." if classifier.core else ""
    inside = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    merged = {name.replace(".base_layer.", "."): t for name, t in inside.items() if ".lora_" not in name}
    for name, down in inside.items():
        if not name.endswith(".lora_A.default.weight"):
            continue
        layer = name.removesuffix(".lora_A.default.weight")
        up = inside[f"{layer}.lora_B.default.weight"]
        base = merged[f"{layer}.weight"]
        product = (up.flatten(1) @ down.flatten(1)).view_as(base)
        merged[f"{layer}.weight"] = base + config.lora_alpha / config.lora_rank * product
    return merged
