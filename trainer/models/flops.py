"""Counts the forward pass of any model with torch's counter, on the meta device: nothing is computed."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from trainer.models.classifier import ForwardFlops, ImageClassifier

ATTENTION = ("bmm", "baddbmm")


def count_forward_flops(model: ImageClassifier, image_size: int, channels: int) -> ForwardFlops:
    """What one image costs in `model`, whose tensors may be anywhere; the linear layers of the head are left out.

    Raises:
        Exception: whatever the model raises for images of this shape.
    """
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    empty = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    image = torch.empty(1, channels, image_size, image_size, device="meta")
    was_training = model.training
    model.eval()
    try:
        # the other kernels of attention are not counted, or not there for the meta device
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            torch.func.functional_call(model, empty, (image,))
    finally:
        model.train(was_training)
    by_operator = counter.get_flop_counts()["Global"]
    products = float(sum(flops for op, flops in by_operator.items() if op.__name__ in ATTENTION))
    return ForwardFlops(counter.get_total_flops() - products - _head_flops(model), products)


def _head_flops(model: ImageClassifier) -> float:
    network = model.network()
    layers = [layer for head in model.heads for layer in network.get_submodule(head).modules()]
    return sum(2.0 * x.in_features * x.out_features for x in layers if isinstance(x, nn.Linear))
