"""Define the models that engines train: a network together with its loss.

`Learner` is the interface that an engine uses. `ImageClassifier` adds the head's names and the FLOPs.
`count_forward_flops` counts the forward pass of any image model with torch's counter on the meta device, without
computing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from trainer.data.text.token_rows import IGNORED

TOP = 5


class Learner(nn.Module):
    """A model that returns (sum of the losses, measures) with labels, and its prediction without them.

    Its forward computes the loss, so that a strategy's wrapper sees the whole computation.
    """

    step_measures: tuple[str, ...] = ()
    """Names of the training measures, in order; each counts samples.

    metrics.jsonl has each as train_<name>_pct of the samples. `accuracy` is also reported per epoch.
    """
    products_dtype: torch.dtype | None = None
    """Element type of products under autocast (trainer/models/mixed_precision.py); None = the weights' type."""

    teacher: Any = None
    """Teacher in training (trainer/models/teacher.py). It is not a module, so that it is neither wrapped nor saved."""

    def predict(self, inputs: Tensor) -> Tensor:
        """Inputs -> logits."""
        raise NotImplementedError

    def score(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Map inputs and labels in the format of `Batch.micro` to (fp32 [], int64 [n])."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """`score` with labels, `predict` without."""
        with self.autocast(inputs.device.type):
            return self.predict(inputs) if labels is None else self.score(inputs, labels)

    def autocast(self, device_type: str) -> AbstractContextManager[None]:
        """Return the autocast context of the model; it has no effect without `products_dtype`."""
        if self.products_dtype is None:
            return nullcontext()
        return torch.autocast(device_type, dtype=self.products_dtype)

    def blocks(self) -> list[nn.Module]:
        """Return the repeated parts, in order, not nested."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Taught:
    """A teacher's logits for the same inputs (trainer/models/teacher.py), and their share of the loss."""

    logits: Tensor
    """[batch, class], without a gradient."""
    temperature: float
    weight: float
    """Share of the loss that is the distance to the teacher."""


class ClassLoss(nn.Module):
    """Loss and measures of an image classifier.

    Measures in training are `step_measures`, with mixup by the larger share. Measures in evaluation, without smoothing,
    are the number of samples with their class among the five likeliest, then the confusion matrix by rows (true
    classes).

    Args:
        smoothing: share of the labels that is spread over all classes.
    """

    step_measures = ("accuracy",)

    def __init__(self, smoothing: float = 0.0) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits: Tensor, labels: Tensor, taught: Taught | None = None) -> tuple[Tensor, Tensor]:
        """Return (sum of the losses, measures).

        Args:
            logits: [batch, class].
            labels: int64 [batch], IGNORED for padding; with mixup the shares of all classes [batch, class].
            taught: for training, the teacher's logits of these images.
        """
        if not self.training:
            return self._judge(logits.float(), labels)
        wanted = labels if labels.dtype == torch.int64 else labels.argmax(1)
        correct = (logits.detach().argmax(1) == wanted).sum()
        loss = sum_losses(logits, labels, self.smoothing)
        if taught is not None:
            distance = sum_distances(logits, taught.logits, taught.temperature)
            loss = (1 - taught.weight) * loss + taught.weight * distance
        return loss, correct[None]

    def _judge(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        losses = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED)
        classes, counts = logits.shape[1], labels != IGNORED
        likeliest = logits.topk(min(TOP, classes), dim=1).indices
        among = (likeliest == labels[:, None]).any(1).sum()
        confusion = torch.zeros(classes * classes, dtype=torch.int64, device=labels.device)
        confusion.index_add_(0, labels.clamp(min=0) * classes + logits.argmax(1), counts.long())
        return losses.sum(), torch.cat([among[None], confusion])


def sum_distances(logits: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """Return the sum of T^2 KL(teacher || student), both softmaxes at temperature T, in fp32.

    T^2 keeps the gradients as large as the labels' gradients for every T (Hinton et al., arXiv 1503.02531).

    Args:
        logits, wanted: the student's and the teacher's [batch, class].
    """
    assert logits.shape == wanted.shape, "teacher and student need the same classes"
    ours, theirs = (F.log_softmax(part.float() / temperature, dim=1) for part in (logits, wanted))
    return temperature**2 * F.kl_div(ours, theirs, reduction="sum", log_target=True)


def sum_losses(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the sum of the cross-entropies, in fp32, or in fp64 for fp64 logits.

    Args:
        logits: [..., class].
        labels: int64 [...], IGNORED for missing labels; or the shares of all classes [batch, class] (mixup).
    """
    if labels.dtype == torch.int64:
        logits, labels = logits.flatten(0, -2), labels.flatten()
    exact = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(
        logits.to(exact), labels, reduction="sum", label_smoothing=smoothing, ignore_index=IGNORED
    )


class ForwardFlops(NamedTuple):
    """Floating-point operations of one image's forward pass; an addition and a multiplication count as two."""

    weights: float
    """Matrix products and convolutions with a weight, without the head."""
    products: float = 0.0
    """Matrix products of two activations: attention."""

    def training(self) -> float:
        """Return the FLOPs of forward and backward; backward computes the gradients of both factors."""
        return 3.0 * (self.weights + self.products)

    def frozen(self) -> float:
        """Return `training` without the weights' gradients ("4N" of LoRA); the adapters' own share is not counted."""
        return 2.0 * self.weights + 3.0 * self.products


class ImageClassifier(Learner):
    """Predict logits [batch, class] from float images [batch, channel, height, width]."""

    step_measures = ClassLoss.step_measures
    core = ""
    """Name of the submodule that keeps the names of its library (transformers, torchvision); "" = the model."""
    loss: nn.Module
    """(logits, labels) -> (sum of the losses, measures); without parameters."""
    heads: list[str]
    """Names, inside the core, of the modules that depend on the number of classes."""
    flops_per_sample: float

    def score(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and measures of the images' logits."""
        # the teacher first: its activations are freed before the student keeps any
        taught = self.teacher.answer(inputs) if self.teacher and self.training else None
        found: tuple[Tensor, Tensor] = self.loss(self.predict(inputs), labels, taught)
        return found

    def set_flops(self, forward: ForwardFlops) -> None:
        """Set the FLOPs per image of a training step."""
        self.forward_flops = forward
        self.flops_per_sample = forward.training()

    def network(self) -> nn.Module:
        """Return the core."""
        return self.get_submodule(self.core)


def repeat_channel(images: Tensor, channels: int) -> Tensor:
    """Repeat one grey channel `channels` times; a view, without a copy."""
    return images.expand(-1, channels, -1, -1)


def wrong_channels(name: str, wanted: int, channels: int) -> str:
    """Return the message for channels that do not fit the weights; one grey channel is repeated instead."""
    return (
        f"TRAINER_INIT='pretrained': the weights of {name} take {wanted} channels, the images have {channels} "
        "[SL-channels-differ]"
    )


ATTENTION = ("bmm", "baddbmm")


def count_forward_flops(model: ImageClassifier, image_size: int, channels: int) -> ForwardFlops:
    """Count one image's FLOPs in `model`, without the linear layers of the head; tensors may be on any device.

    Raises:
        Exception: the model's own error for images of this shape.
    """
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    empty = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    image = torch.empty(1, channels, image_size, image_size, device="meta")
    was_training = model.training
    model.eval()
    try:
        # the counter misses the other kernels of attention, or the meta device lacks them
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
