"""Train a student with a frozen teacher's answers in addition to the labels (Hinton et al., arXiv 1503.02531).

    loss = (1 - weight) x the task's loss + weight x T^2 KL(teacher || student), softmaxes at temperature T

`place_teacher` prepares the teacher on each rank that computes a loss. It is whole and sees the student's inputs,
including crops and augmentation. It is never trained, sharded or saved. Its forward pass runs before the student's.
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
    """A teacher. It is not a module, so that wrapping, sharding and saving skip it.

    Copies of the student share it.

    Args:
        model: on its device, see `place_teacher`.
        rescale: (factor, offset) by channel, from the student's pixels to the teacher's; None = the same pixels.
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
        """Return all tensors that it holds."""
        yield from self.model.parameters()
        yield from self.model.buffers()

    @torch.no_grad()
    def answer(self, images: Tensor) -> Taught:
        """Return the teacher's logits for the student's images."""
        if self._rescale:
            factor, offset = (part.to(images.device) for part in self._rescale)
            images = images * factor + offset
        return Taught(self.model(images), self.temperature, self.weight)

    @torch.no_grad()
    def explain(self, inputs: Tensor, columns: tuple[int, int] = (0, 1)) -> TaughtStates:
        """Return the inputs of the teacher's logits for whole rows of text, int64 [row, 2, token].

        The loss computes the logits from them chunk by chunk.

        Args:
            columns: (i, n): return the i-th of n parts of each row.
        """
        with self.model.autocast(inputs.device.type):
            states = self.model.states(inputs)
        states = states.chunk(columns[1], dim=1)[columns[0]]
        head = self.model.head
        return TaughtStates(states * head.factor, head.weight, self.temperature, self.weight, head.loss.cap)


def place_teacher(model: Learner, device: str, dtype: torch.dtype | None) -> Learner:
    """Freeze the model and move it to its device in evaluation mode, in place.

    Args:
        dtype: of products, None = fp32. Product weights are stored in it, which halves their memory. The results do not
            change, because the weights are never updated.
    """
    if dtype is not None:
        apply_low_precision(model, dtype)
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if is_product_weight(module, name):
                    parameter.data = parameter.data.to(dtype)
    return model.requires_grad_(False).eval().to(device)
