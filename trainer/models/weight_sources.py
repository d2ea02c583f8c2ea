"""Where a decoder's initial weights come from: the seed, a folder, or the hub."""

from __future__ import annotations

from pathlib import Path

from trainer.models.decoder_weights import RandomWeights, Weights
from trainer.models.safetensors_weights import SafetensorsWeights, fetch_weights
from trainer.settings.config import Config
from trainer.shapes.decoder_shapes import DecoderShape, hub_id, weight_shapes


def open_weights(config: Config, shape: DecoderShape) -> Weights:
    """Fresh weights by the seed, or those of `model_path` or of the hub; nothing is read yet.

    Raises:
        DataMissing: no files to be had.
    """
    fresh = RandomWeights(weight_shapes(shape, config), config.seed)
    if config.init == "scratch":
        return fresh
    if config.model_path:
        named = f"TRAINER_MODEL_PATH={config.model_path!r}"
        return SafetensorsWeights(Path(config.model_path), fresh, named)
    named = f"TRAINER_MODEL={config.model!r}"
    return SafetensorsWeights(fetch_weights(hub_id(config), named), fresh, named)
