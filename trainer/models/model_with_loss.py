"""What an engine trains: a network that knows its loss. The task's models are these; an engine knows nothing more.

All models share their costs, their repeated parts, and where the network lies that is known elsewhere. The forward pass
of any model of images is counted with torch's counter, on the meta device: nothing is computed.
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
    """With labels a learner gives (sum of the losses, measures), without them what it predicts.

    The loss is computed inside its forward, so that whatever a strategy wraps around it sees all of the computation.
    """

    step_measures: tuple[str, ...] = ()
    """Names of the measures in training, in their order: each counts samples, and a line of metrics.jsonl has it as
    train_<name>_pct of them. The `accuracy` is also given per epoch."""
    products_dtype: torch.dtype | None = None
    """Element type of products under autocast (trainer/models/mixed_precision.py); None = that of the weights."""

    teacher: Any = None
    """Whom it learns from in training (trainer/models/teacher.py): no module, so that nothing wraps or saves it."""

    def predict(self, inputs: Tensor) -> Tensor:
        """Inputs -> logits."""
        raise NotImplementedError

    def score(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels as `Batch.micro` holds them -> (fp32 [], int64 [n])."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """`score` with labels, `predict` without."""
        with self.autocast(inputs.device.type):
            return self.predict(inputs) if labels is None else self.score(inputs, labels)

    def autocast(self, device_type: str) -> AbstractContextManager[None]:
        """Of what is computed inside; without effect where `products_dtype` is None."""
        if self.products_dtype is None:
            return nullcontext()
        return torch.autocast(device_type, dtype=self.products_dtype)

    def blocks(self) -> list[nn.Module]:
        """The repeated parts, in order, none inside another."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Taught:
    """What a teacher says of the same inputs (trainer/models/teacher.py), and what it counts."""

    logits: Tensor
    """[batch, class], without a gradient."""
    temperature: float
    weight: float
    """Share of the loss that is the distance to the teacher."""


class ClassLoss(nn.Module):
    """Of an image classifier. Measures in training: `step_measures`, with mixup by the larger share; in
    evaluation, without smoothing: (samples whose class is among the five likeliest, then the confusion matrix by
    rows, which are the true classes).

    Args:
        smoothing: share of the labels that is spread over all classes.
    """

    step_measures = ("accuracy",)

    def __init__(self, smoothing: float = 0.0) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits: Tensor, labels: Tensor, taught: Taught | None = None) -> tuple[Tensor, Tensor]:
        """Logits [batch, class]; labels int64 [batch], IGNORED for padding, or with mixup the shares of all classes
        [batch, class]. `taught`: in training, of the same images."""
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
    """Sum of T^2 KL(teacher || student), both softmaxes at temperature T, in fp32 (Hinton et al., arXiv 1503.02531).

    T^2 keeps its gradients as large as those of the labels, whatever T is.

    Args:
        logits, wanted: the student's and the teacher's [batch, class].
    """
    assert logits.shape == wanted.shape, "teacher and student tell the same classes apart"
    ours, theirs = (F.log_softmax(part.float() / temperature, dim=1) for part in (logits, wanted))
    return temperature**2 * F.kl_div(ours, theirs, reduction="sum", log_target=True)


def sum_losses(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Sum of the cross-entropies, in fp32, or fp64 where the logits have it.

    Args:
        logits: [..., class].
        labels: int64 [...], IGNORED where there is none, or the shares of all classes [batch, class] (mixup).
    """
    if labels.dtype == torch.int64:
        logits, labels = logits.flatten(0, -2), labels.flatten()
    exact = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(
        logits.to(exact), labels, reduction="sum", label_smoothing=smoothing, ignore_index=IGNORED
    )


class ForwardFlops(NamedTuple):
    """Floating-point operations of one image's forward pass; an addition and a multiplication are two."""

    weights: float
    """Matrix products and convolutions with a weight, the head left out."""
    products: float = 0.0
    """Matrix products of two activations: the attention's."""

    def training(self) -> float:
        """Forward and backward: a backward pass has the gradients of both factors to compute."""
        return 3.0 * (self.weights + self.products)

    def frozen(self) -> float:
        """The same without the weights' gradients ("4N" of LoRA); the adapters' own share is left out."""
        return 2.0 * self.weights + 3.0 * self.products


class ImageClassifier(Learner):
    """Predicts from float images [batch, channel, height, width] the logits [batch, class]."""

    step_measures = ClassLoss.step_measures
    core = ""
    """Name of the submodule that others know by its own names (transformers', torchvision's); "" = the model."""
    loss: nn.Module
    """(logits, labels) -> (sum of the losses, measures); has no parameters."""
    heads: list[str]
    """Names, inside the core, of the modules that depend on the number of classes."""
    flops_per_sample: float

    def score(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Images and labels -> what the loss says of their logits."""
        # the teacher first: what it needs on the way is gone before the student keeps anything
        taught = self.teacher.answer(inputs) if self.teacher and self.training else None
        found: tuple[Tensor, Tensor] = self.loss(self.predict(inputs), labels, taught)
        return found

    def set_flops(self, forward: ForwardFlops) -> None:
        """Sets what a training step costs per image."""
        self.forward_flops = forward
        self.flops_per_sample = forward.training()

    def network(self) -> nn.Module:
        """The core itself."""
        return self.get_submodule(self.core)


def repeat_channel(images: Tensor, channels: int) -> Tensor:
    """One grey channel as `channels` equal ones; a view, nothing is copied."""
    return images.expand(-1, channels, -1, -1)


def wrong_channels(name: str, wanted: int, channels: int) -> str:
    """The sentence for images whose channels do not fit the weights (one grey channel is repeated instead)."""
    return (
        f"TRAINER_INIT='pretrained': the weights of {name} take {wanted} channels, the images have {channels} "
        "[SL-channels-differ]"
    )


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
