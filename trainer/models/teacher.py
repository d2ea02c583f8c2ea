"""A teacher: a frozen network whose answers a student learns from beside the labels (Hinton et al., arXiv 1503.02531).

    loss = (1 - weight) x the task's loss + weight x T^2 KL(teacher || student), softmaxes at temperature T

It is whole on every rank that computes a loss, sees what the student sees (crops, augmentation), is never trained,
sharded or saved, and its forward pass comes before the student's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from trainer.models.chunked_cross_entropy import TaughtStates
from trainer.models.mixed_precision import apply_low_precision, is_product_weight
from trainer.models.model_with_loss import Learner, Taught


class Teacher:
    """No module: whatever wraps, shards, saves or trains the student does not see it; copies of the student share it.

    Args:
        model: on its device, see `place_teacher`.
        rescale: (factor, offset) by channel, from the student's pixels to those that the teacher was trained with;
            None = the same.
    """

    def __init__(
        self, model: Learner, temperature: float, weight: float, rescale: tuple[Tensor, Tensor] | None = None
    ) -> None:
        self.model = model
        self.temperature = temperature
        self.weight = weight
        self._rescale = rescale

    def __deepcopy__(self, memo: Any) -> Teacher:
        return self

    def tensors(self) -> Iterator[Tensor]:
        """All that it holds."""
        yield from self.model.parameters()
        yield from self.model.buffers()

    @torch.no_grad()
    def answer(self, images: Tensor) -> Taught:
        """Of images, as the student gets them."""
        if self._rescale:
            factor, offset = (part.to(images.device) for part in self._rescale)
            images = images * factor + offset
        return Taught(self.model(images), self.temperature, self.weight)

    @torch.no_grad()
    def explain(self, inputs: Tensor, columns: tuple[int, int] = (0, 1)) -> TaughtStates:
        """Of whole rows of text, int64 [row, 2, token]: not the logits, but what they are made of, chunk by chunk.

        Args:
            columns: (i, n): the i-th of n parts of each row is wanted.
        """
        with self.model.autocast(inputs.device.type):
            states = self.model.states(inputs)
        states = states.chunk(columns[1], dim=1)[columns[0]]
        return TaughtStates(states, self.model.hf.lm_head.weight, self.temperature, self.weight)


def place_teacher(model: Learner, device: str, dtype: torch.dtype | None) -> Learner:
    """The model frozen, in evaluation mode, on its device, in place.

    Args:
        dtype: of products, None = fp32. Their weights are kept in it: half the memory, and the same numbers, for
            nothing is added to them.
    """
    if dtype is not None:
        apply_low_precision(model, dtype)
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if is_product_weight(module, name):
                    parameter.data = parameter.data.to(dtype)
    return model.requires_grad_(False).eval().to(device)
