"""What an engine trains: a network that knows its loss. The task's models are these; an engine knows nothing more."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.data.batches import IGNORED

TOP = 5


class Learner(nn.Module):
    """With labels a learner gives (sum of the losses, measures), without them what it predicts.

    The loss is computed inside its forward, so that whatever a strategy wraps around it sees all of the computation.
    """

    step_measures: tuple[str, ...] = ()
    """Names of the measures in training, in their order: each counts samples, and a line of metrics.jsonl has it as
    train_<name>_pct of them. The `accuracy` is also given per epoch."""
    products_dtype: torch.dtype | None = None
    """Element type of products under autocast (trainer/models/low_precision.py); None = that of the weights."""

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
