"""Weights of our own networks from a file, and how a folder says what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from trainer.failures import DataMissing
from trainer.models.classifier import ImageClassifier
from trainer.models.safetensors_weights import unreadable
from trainer.settings.config import Config


def read_weights(config: Config) -> dict[str, Tensor]:
    """All tensors of the *.safetensors in `model_path`.

    Raises:
        DataMissing: there are none, or they cannot be read.
    """
    state: dict[str, Tensor] = {}
    try:
        files = sorted(Path(config.model_path).glob("*.safetensors"))
    except OSError as failure:  # the folder itself
        raise DataMissing(
            f"TRAINER_MODEL_PATH={config.model_path!r}: cannot be read: {failure} "
            "[SL-weights-folder-unreadable]"
        ) from failure
    for path in files:
        try:
            state |= load_file(path)
        except Exception as failure:  # safetensors has an error class of its own, beside the disk's
            raise unreadable(f"TRAINER_MODEL_PATH={config.model_path!r}", path.name, failure) from failure
    return state


def load_weights(
    config: Config,
    model: ImageClassifier,
    state: dict[str, Any],
    whole: bool = False,
    order: list[int] | None = None,
) -> None:
    """Copies `state` (names inside the core) into the model; a head of another size keeps its fresh weights.

    Args:
        whole: the head too must be there.
        order: for each class its place among those of `state`; None: they are others, the head keeps its fresh weights.

    Raises:
        DataMissing: a tensor of the body is not there or has another shape.
    """
    network = model.network()
    named_heads = tuple(f"{head}." for head in model.heads)
    heads = () if whole else named_heads
    wanted = network.state_dict()
    if order is None:
        state = {name: tensor for name, tensor in state.items() if not name.startswith(named_heads)}
    fits = {name: t for name, t in state.items() if name in wanted and wanted[name].shape == t.shape}
    if lost := sorted(name for name in wanted if name not in fits and not name.startswith(heads)):
        named = (
            f"TRAINER_MODEL_PATH={config.model_path!r}"
            if config.model_path
            else f"TRAINER_MODEL={config.model!r}"
        )
        raise DataMissing(
            f"{named}: expected the tensors of {config.model_name}; {len(lost)} are not there or of another "
            f"shape, first {lost[0]} [SL-weights-differ]"
        )
    network.load_state_dict(fits, strict=False)
    if order and all(name in fits for name in wanted if name.startswith(named_heads)):
        reorder_head(network, model.heads, order)


@torch.no_grad()
def reorder_head(network: nn.Module, heads: list[str], order: list[int]) -> None:
    """Puts the outputs of a network into another order, in place.

    Args:
        heads: names of the modules that end with them.
        order: for each output its place now.
    """
    if order == list(range(len(order))):
        return
    for head in heads:
        *_, last = (
            module
            for module in network.get_submodule(head).modules()
            if isinstance(weight := getattr(module, "weight", None), Tensor) and len(weight) == len(order)
        )
        for tensor in last.parameters(recurse=False):
            tensor.copy_(tensor[order].clone())
